//! What a keyed participant may have forgotten (rule K14).

use super::call::Answer;
use super::instance::Sent;
use super::names::Op;
use super::step::Machine;

impl Machine<'_> {
    /// Why a key that was sent before must not be sent again: its participant may have forgotten it by then, and would do
    /// it again (rule K14).
    pub(super) fn forgotten_by_now(&mut self, step: usize, op: Op) -> Option<String> {
        let most = self.it(step).repeat_ms()?;
        let now = self.context.now;
        let sent = (*self.instance.steps[step].sent(op))?;
        let since = now.ms_since(sent.at).max(0).unsigned_abs();
        (since > most).then(|| {
            format!(
                "its key was first sent at {}, and its participant may have forgotten it by now (window_ms): look whether it \
                 happened, it is not sent again",
                sent.at.rfc3339()
            )
        })
    }

    /// An attempt that never left was not sent.
    pub(super) fn left(&mut self, step: usize, op: Op, answer: &Answer) {
        let never = matches!(answer, Answer::NotSent(_) | Answer::Held | Answer::Unservable(_));
        let sent = self.instance.steps[step].sent(op);
        *sent = sent
            .filter(|sent| !(never && sent.first))
            .map(|sent| Sent { first: false, ..sent });
    }
}
