//! The answer to an intent: an outcome and attributes, read from the results of its compound.

use curt_rpc::client::CallError;
use curt_types::Fault;

use super::{reply::CompoundReply, request::CompoundRequest};
use crate::protocol::{
    Answer, NfsReply,
    v4::{
        NfsV4,
        results::{CompoundResultReader, DecodedReply, fault},
    },
};

impl NfsV4 {
    /// Sends a compound with small results and judges them.
    pub(in crate::protocol::v4) fn ask<T, A: Default>(
        &self,
        request: &CompoundRequest<'_>,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Answer<T, A> {
        let answer = self.send(request).and_then(|reply| {
            let answer = self.answered(&reply, judge);
            if let (Some(opens), Err(_)) = (request.opens, &answer) {
                self.abandon(opens());
            }
            answer
        });
        if let (Some(opening), Err(_)) = (request.opening, &answer) {
            opening.lose_reply(request.caller.credential);
        }
        answer
    }

    /// Judges the results of a reply.
    pub(in crate::protocol::v4) fn answered<T, A: Default>(
        &self,
        reply: &CompoundReply,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Answer<T, A> {
        let (outcome, attributes) = self.judged(reply, judge)?;
        let (sent_at, lost_at) = (reply.call.sent_at, reply.call.lost_at);
        Ok(NfsReply { sent_at, lost_at, outcome, attributes })
    }

    /// As [`Self::answered`], without the times.
    pub(in crate::protocol::v4) fn judged<T, A: Default>(
        &self,
        reply: &CompoundReply,
        judge: impl FnOnce(&mut CompoundResultReader<'_>) -> DecodedReply<T, A>,
    ) -> Result<(Result<T, Fault>, A), CallError> {
        if let Some(status) = reply.refused() {
            return Ok((Err(fault(status)), A::default()));
        }
        let results = self.decoded(reply.results())?;
        self.decoded(judge(&mut CompoundResultReader::new(results, reply.generation())))
    }
}
