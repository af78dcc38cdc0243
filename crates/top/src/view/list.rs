//! The list of processes.

use std::cmp::Ordering;

use examine::Listed;
use formats::Group;
use render::{TopCauses, TopOrder, TopProcess};

use super::View;

/// The least number of lines of a terminal for the part about the selected process.
const MIN_HEIGHT_FOR_DETAIL: usize = 16;

impl View {
    /// The processes that the filter lets through, in their order, each with the lines of its branch. The tree that has the
    /// first process comes first.
    pub(super) fn listed(&self) -> Vec<(&Listed, String)> {
        let filter = self.filter.to_lowercase();
        let mut shown: Vec<&Listed> = self
            .processes
            .iter()
            .filter(|process| process.command.to_lowercase().contains(&filter))
            .collect();
        shown.sort_by(|one, other| self.compare(one, other));
        let ids: Vec<_> = shown.iter().map(|process| (process.id.0, process.parent)).collect();
        let lines = render::trees(&ids, |family| family.iter().copied().min());
        lines.into_iter().map(|(index, branch)| (shown[index], branch)).collect()
    }

    fn compare(&self, one: &Listed, other: &Listed) -> Ordering {
        let share = |process: &Listed| {
            let group = process.group?;
            Some(group.usage_bytes as f64 / group.limit_bytes? as f64)
        };
        let figure = |process: &Listed| match self.order {
            TopOrder::Rss => Some(process.rss_bytes as f64),
            TopOrder::Pss => process.exact.map(|it| it.pss_bytes as f64),
            TopOrder::Limit => share(process),
            TopOrder::Growth => process.growth_per_minute,
            TopOrder::Pid => None,
        };
        let by_figure = figure(other).partial_cmp(&figure(one)).unwrap_or(Ordering::Equal);
        by_figure.then(one.id.cmp(&other.id))
    }

    pub(super) fn move_by(&mut self, steps: isize) {
        let ids = self.ids();
        let at = ids.iter().position(|id| Some(*id) == self.selected).unwrap_or(0);
        let last = ids.len().saturating_sub(1);
        self.selected = ids.get(at.saturating_add_signed(steps).min(last)).copied();
    }

    pub(super) fn list_lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let detail = if height < MIN_HEIGHT_FOR_DETAIL { 0 } else { height * 2 / 5 };
        // The title, the heads, and the line at the bottom.
        self.height = height.saturating_sub(3 + detail).max(1);
        let listed: Vec<(Listed, String)> =
            self.listed().into_iter().map(|(process, branch)| (process.clone(), branch)).collect();
        let place = listed.iter().position(|(process, _)| Some(process.id) == self.selected);
        let at = place.unwrap_or(0);
        self.selected = listed.get(at).map(|(process, _)| process.id);
        self.first = self.first.min(at).max((at + 1).saturating_sub(self.height));
        self.first = self.first.min(listed.len().saturating_sub(self.height));
        let rows: Vec<TopProcess<'_>> =
            listed.iter().map(|(process, branch)| self.row(process, branch)).collect();
        let mut lines =
            vec![render::top_title(&rows, self.refused, self.order, &self.filter, width)];
        if rows.is_empty() {
            lines.push(if self.processes.is_empty() {
                "No Ruby processes found.".into()
            } else {
                "No Ruby process has this word in its command line.".into()
            });
            return lines;
        }
        lines.push(render::top_head(width));
        let on_screen = rows.iter().enumerate().skip(self.first).take(self.height);
        lines.extend(on_screen.map(|(index, row)| render::top_row(row, index == at, width)));
        if detail > 1 {
            lines.resize(2 + self.height, String::new());
            lines.push("─".repeat(width));
            lines.extend(render::top_detail(&rows[at], width, detail - 1));
        }
        lines
    }

    fn row<'a>(&'a self, process: &'a Listed, branch: &'a str) -> TopProcess<'a> {
        let causes = self.causes.get(&process.id);
        TopProcess {
            pid: process.id.0,
            branch,
            rss_bytes: process.rss_bytes,
            pss_bytes: process.exact.map(|it| it.pss_bytes),
            group: process.group.map(Group::from),
            is_limit_unknown: process.is_limit_unknown,
            growth_per_minute: process.growth_per_minute,
            causes: causes.map_or(TopCauses::Unknown, |causes| match &causes.rows {
                Ok(rows) => TopCauses::Known(rows, causes.read.elapsed()),
                Err(reason) => TopCauses::Refused(reason),
            }),
            command: &process.command,
        }
    }
}
