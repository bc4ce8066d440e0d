//! What a proxy does to the data that passes; pure.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

#[derive(Debug)]
pub(super) enum Rule {
    SwallowReply,
    SwallowReplyTo(Vec<u8>),
    CutBefore(Vec<u8>),
    CutAfter(Direction, u64),
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    pub(super) delay: Duration,
}

/// What becomes of a piece of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Forward,
    /// Forward it, and throw away what the server says next.
    ForwardAndSwallowReply,
    /// Forward so many bytes of it, then cut.
    CutAt(usize),
}

impl Rules {
    pub(super) fn push(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Judges `data`; `before` are the bytes that passed just before it the same way on the same connection. The first
    /// rule that applies acts and is used up.
    pub(super) fn judge(&mut self, direction: Direction, before: &[u8], data: &[u8]) -> Verdict {
        for index in 0..self.rules.len() {
            let verdict = match &mut self.rules[index] {
                Rule::SwallowReply if direction == Direction::ToClient => Verdict::CutAt(0),
                Rule::SwallowReplyTo(text)
                    if direction == Direction::ToServer && ends(before, data, text) =>
                {
                    Verdict::ForwardAndSwallowReply
                }
                Rule::CutBefore(text) if direction == Direction::ToServer && ends(before, data, text) => {
                    Verdict::CutAt(0)
                }
                Rule::CutAfter(way, left) if *way == direction => {
                    match usize::try_from(*left).ok().filter(|left| *left <= data.len()) {
                        Some(left) => Verdict::CutAt(left),
                        None => {
                            *left -= data.len() as u64;
                            continue;
                        }
                    }
                }
                _ => continue,
            };
            self.rules.remove(index);
            return verdict;
        }
        Verdict::Forward
    }
}

/// `text` occurs in `before ++ data` and ends in `data`.
fn ends(before: &[u8], data: &[u8], text: &[u8]) -> bool {
    let kept = before.len().min(text.len().saturating_sub(1));
    let mut all = before[before.len() - kept..].to_vec();
    all.extend(data);
    text.is_empty() || all.windows(text.len()).any(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{ToClient, ToServer};

    fn rules(rule: Rule) -> Rules {
        let mut rules = Rules::default();
        rules.push(rule);
        rules
    }

    #[test]
    fn a_text_is_found_across_two_pieces_and_only_once() {
        let mut rules = rules(Rule::SwallowReplyTo(b"COMMIT".to_vec()));
        assert_eq!(rules.judge(ToServer, b"", b"BEGIN; COM"), Verdict::Forward);
        assert_eq!(rules.judge(ToClient, b"", b"COMMIT"), Verdict::Forward);
        let verdict = rules.judge(ToServer, b"BEGIN; COM", b"MIT");
        assert_eq!(verdict, Verdict::ForwardAndSwallowReply);
        assert_eq!(rules.judge(ToServer, b"", b"COMMIT"), Verdict::Forward);
    }

    #[test]
    fn a_cut_counts_the_bytes_of_its_own_direction() {
        let mut rules = rules(Rule::CutAfter(ToServer, 5));
        assert_eq!(rules.judge(ToServer, b"", b"abc"), Verdict::Forward);
        assert_eq!(rules.judge(ToClient, b"", b"0123456789"), Verdict::Forward);
        assert_eq!(rules.judge(ToServer, b"", b"def"), Verdict::CutAt(2));
    }
}
