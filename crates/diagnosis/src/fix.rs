use formats::{Action, Advice};

/// A variable of the environment, and its value.
pub type Variable = (&'static str, &'static str);

/// The variables that load jemalloc, with the thread that returns its free memory. The dynamic linker finds the library
/// by this name wherever a package installed it.
pub const JEMALLOC: [Variable; 2] =
    [("LD_PRELOAD", "libjemalloc.so.2"), ("MALLOC_CONF", "background_thread:true")];
/// The variable that lets jemalloc return free memory also while the program is idle.
pub const BACKGROUND_THREAD: [Variable; 1] = [JEMALLOC[1]];
/// The variables that limit glibc's malloc to two arenas.
pub const TWO_ARENAS: [Variable; 1] = [("MALLOC_ARENA_MAX", "2")];
/// The variables that load rbloat's gem into a program without Bundler, and start AutoTrim. A Gemfile may have the gem, too: it then
/// adds the part for Rails.
pub const GEM: [Variable; 2] = [("RUBYOPT", "-rrbloat/core"), ("RBLOAT_AUTO_TRIM", "1")];

/// The variable that starts the gem's NativePressure.
pub const NATIVE_PRESSURE: [Variable; 1] = [("RBLOAT_NATIVE_PRESSURE", "1")];

/// The variables among those above whose present values a change would replace.
pub(crate) const REPLACED_VARIABLES: [&str; 4] =
    ["LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_CONF", "RUBYOPT"];

/// Groups the advice into steps. Each step is a list of alternatives, the best one first: settings against the same free
/// memory of malloc exclude each other.
#[must_use]
pub fn steps(advice: &[Advice]) -> Vec<Vec<&Advice>> {
    let is_setting = |advice: &Advice| {
        matches!(
            advice.action,
            Action::AutoTrim
                | Action::PreloadJemalloc { .. }
                | Action::DecayInBackground
                | Action::LimitArenas { .. }
        )
    };
    let mut steps: Vec<Vec<&Advice>> = Vec::new();
    for advice in advice {
        let same = steps.iter_mut().find(|step| is_setting(step[0]));
        match same.filter(|_| is_setting(advice)) {
            Some(alternatives) => alternatives.push(advice),
            None => steps.push(vec![advice]),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_malloc_are_alternatives_and_other_steps_are_not() {
        let all = [
            Action::Compact,
            Action::AutoTrim,
            Action::PreloadJemalloc { is_broken: false, is_pinned: false },
            Action::Trim,
            Action::LimitArenas { kept_bytes: 1 },
            Action::WatchPss,
        ]
        .map(|action| Advice { action, saves_bytes: None });
        let [compact, gem, jemalloc, trim, arenas, watch] = &all;
        let expected = [vec![compact], vec![gem, jemalloc, arenas], vec![trim], vec![watch]];
        assert_eq!(steps(&all), expected);
        assert_eq!(steps(&[]), Vec::<Vec<&Advice>>::new());
    }
}
