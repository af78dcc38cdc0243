use crate::claims::Span;

/// Lays one sequence of spans over another: if both claim a byte, the upper one has it.
///
/// Both sequences must be ascending and disjoint, and so is the result. An overlap need not be an error, since Ruby's
/// heap pages lie inside malloc's blocks on some releases. `clash` is called for each and decides.
pub(crate) struct Overlay<U, L, C> {
    upper: U,
    lower: L,
    /// The next span of the upper sequence.
    above: Option<Span>,
    /// The part of a span of the lower sequence that is left.
    rest: Option<Span>,
    clash: C,
}

impl<U, L, C> Overlay<U, L, C>
where
    U: Iterator<Item = Span>,
    L: Iterator<Item = Span>,
    C: FnMut(&Span, &Span),
{
    pub(crate) fn new(mut upper: U, lower: L, clash: C) -> Self {
        let above = upper.next();
        Self { upper, lower, above, rest: None, clash }
    }
}

impl<U, L, C> Iterator for Overlay<U, L, C>
where
    U: Iterator<Item = Span>,
    L: Iterator<Item = Span>,
    C: FnMut(&Span, &Span),
{
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        loop {
            let Some(mut lower) = self.rest.take().or_else(|| self.lower.next()) else {
                return std::mem::replace(&mut self.above, self.upper.next());
            };
            let Some(upper) = &self.above else { return Some(lower) };
            if lower.range.end <= upper.range.start {
                return Some(lower);
            }
            if upper.range.end <= lower.range.start {
                self.rest = Some(lower);
                return std::mem::replace(&mut self.above, self.upper.next());
            }
            (self.clash)(upper, &lower);
            if lower.range.start < upper.range.start {
                // The part of the lower span before the upper one.
                let mut before = lower.clone();
                before.range.end = upper.range.start;
                lower.range.start = upper.range.start;
                self.rest = Some(lower);
                return Some(before);
            }
            if upper.range.end < lower.range.end {
                lower.range.start = upper.range.end;
                self.rest = Some(lower);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;
    use linux::Address;
    use proptest::prelude::*;

    fn span(start: u64, end: u64, cause: Cause) -> Span {
        Span::new(Address(start)..Address(end), cause)
    }

    #[test]
    fn the_upper_span_wins_and_the_rest_of_the_lower_stays() {
        let upper = vec![span(10, 20, Cause::RubyLiveSlots), span(30, 35, Cause::RubyLiveSlots)];
        let lower = vec![span(0, 32, Cause::MallocInUse), span(33, 40, Cause::MallocCached)];
        let mut clashes = 0;
        let all: Vec<_> =
            Overlay::new(upper.into_iter(), lower.into_iter(), |_, _| clashes += 1).collect();
        assert_eq!(
            all,
            [
                span(0, 10, Cause::MallocInUse),
                span(10, 20, Cause::RubyLiveSlots),
                span(20, 30, Cause::MallocInUse),
                span(30, 35, Cause::RubyLiveSlots),
                span(35, 40, Cause::MallocCached),
            ]
        );
        assert!(clashes >= 3);
    }

    /// Ascending disjoint spans out of gaps and lengths.
    fn spans(cause: Cause) -> impl Strategy<Value = Vec<Span>> {
        prop::collection::vec((0_u64..20, 1_u64..20), 0..20).prop_map(move |pairs| {
            let mut at = 0;
            let mut next = |(gap, length)| {
                at += gap + length;
                span(at - length, at, cause)
            };
            pairs.into_iter().map(&mut next).collect()
        })
    }

    proptest! {
        #[test]
        fn every_byte_of_either_is_there_once(
            upper in spans(Cause::RubyLiveSlots), lower in spans(Cause::MallocInUse)
        ) {
            let all: Vec<_> =
                Overlay::new(upper.clone().into_iter(), lower.clone().into_iter(), |_, _| {}).collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
            for at in (0..900).map(Address) {
                let of = |spans: &[Span]| {
                    spans.iter().find(|span| span.range.contains(&at)).map(|span| span.cause)
                };
                prop_assert_eq!(of(&all), of(&upper).or_else(|| of(&lower)));
            }
        }
    }
}
