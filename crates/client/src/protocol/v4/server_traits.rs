//! What is known of the server: who it says that it is, and what it refuses.
//!
//! Servers lack operations and values that RFC 8881 has. What a server refuses is not sent to it
//! again, as long as the same implementation answers, but done in another way. A status is about
//! such a thing only if the server has never accepted it, and if the request gets another status
//! without it.

use curt_proto::nfs4::{ExchangeIdOk4, NfsTime4, ShareAccess4};
use curt_types::Fault;
use parking_lot::Mutex;

use crate::protocol::Answer;

/// Features of a server for which the client has alternatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFeature {
    /// The bits of OPEN that ask for a delegation, or for none. Without: the server decides.
    DelegationWishes,
    /// OPEN of a file by its handle (CLAIM_FH). Without: files that exist are not opened, and read
    /// and written with the anonymous stateid.
    OpenByHandle,
    /// EXCLUSIVE4_1, or with it the mode (suppattr_exclcreat). Without: GUARDED4, which the reply
    /// cache of the session protects from being executed twice.
    ExclusiveCreation,
    /// NVERIFY and VERIFY. Without: the type is looked up before REMOVE.
    TypeComparison,
}

impl ServerFeature {
    const ALL: [Self; 4] =
        [Self::DelegationWishes, Self::OpenByHandle, Self::ExclusiveCreation, Self::TypeComparison];

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    const fn name(self) -> &'static str {
        match self {
            Self::DelegationWishes => "OPEN4_SHARE_ACCESS_WANT bits",
            Self::OpenByHandle => "CLAIM_FH",
            Self::ExclusiveCreation => "EXCLUSIVE4_1",
            Self::TypeComparison => "NVERIFY",
        }
    }
}

/// The server's identity (eir_server_owner, eir_server_scope).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerIdentity {
    owner: Vec<u8>,
    scope: Vec<u8>,
    /// Its name and version.
    implementation: String,
    /// The domain of its author, and its build date.
    build: (Vec<u8>, Option<NfsTime4>),
}

impl From<&ExchangeIdOk4<'_>> for ServerIdentity {
    fn from(ok: &ExchangeIdOk4<'_>) -> Self {
        let named = ok.implementation.iter().next();
        let name = named.map(|named| named.name.bytes()).unwrap_or_default();
        let domain = named.map(|named| named.domain.bytes()).unwrap_or_default();
        Self {
            owner: ok.server_owner.major_id.bytes().to_vec(),
            scope: ok.server_scope.bytes().to_vec(),
            implementation: name.escape_ascii().to_string(),
            build: (domain.to_vec(), named.map(|named| named.date)),
        }
    }
}

impl ServerIdentity {
    /// Whether both servers take the same requests, as far as is known.
    fn is_same_implementation(&self, other: &Self) -> bool {
        (&self.implementation, &self.build) == (&other.implementation, &other.build)
    }
}

/// The known traits of the server of a mount.
#[derive(Debug, Default)]
pub(super) struct ServerTraits(Mutex<KnownServer>);

#[derive(Debug, Default)]
struct KnownServer {
    identity: Option<ServerIdentity>,
    /// [`ServerFeature`]s, by their bits.
    accepted: u8,
    refused: u8,
}

impl ServerTraits {
    /// EXCHANGE_ID was answered. Returns whether state of before may be reclaimed: not from a
    /// server of another scope (section 8.4.2.1).
    pub(super) fn exchanged(&self, identity: ServerIdentity) -> bool {
        let known = &mut *self.0.lock();
        let former = known.identity.as_ref();
        let is_same_scope = former.is_none_or(|former| former.scope == identity.scope);
        if !former.is_some_and(|former| former.is_same_implementation(&identity)) {
            tracing::info!(
                implementation = identity.implementation,
                owner = %identity.owner.escape_ascii(),
                scope = %identity.scope.escape_ascii(),
                "the server"
            );
            (known.accepted, known.refused) = (0, 0);
        }
        known.identity = Some(identity);
        is_same_scope
    }

    /// The server's name and version, and what it refuses.
    pub(super) fn report(&self) -> (String, Vec<&'static str>) {
        let known = self.0.lock();
        let refused = ServerFeature::ALL.into_iter().filter(|feature| known.refused & feature.bit() != 0);
        let implementation = known.identity.as_ref().map(|identity| identity.implementation.clone());
        (implementation.unwrap_or_default(), refused.map(ServerFeature::name).collect())
    }

    /// The features that requests use.
    pub(super) fn used(&self) -> UsedFeatures {
        UsedFeatures { refused: self.0.lock().refused }
    }

    /// Whether this is sent to the server.
    pub(super) fn has(&self, feature: ServerFeature) -> bool {
        self.used().has(feature)
    }

    /// The server has executed a request with these.
    pub(super) fn accepted(&self, features: &[ServerFeature]) {
        let known = &mut *self.0.lock();
        known.accepted |= bits(features) & !known.refused;
    }

    /// Returns the features that the server has neither accepted nor refused.
    fn unknown(&self, features: &[ServerFeature]) -> Vec<ServerFeature> {
        let known = self.0.lock();
        let is_unknown = |feature: &&ServerFeature| (known.accepted | known.refused) & feature.bit() == 0;
        features.iter().filter(is_unknown).copied().collect()
    }

    /// The server has refused an OPEN by handle that used these features. Returns whether it is
    /// repeated without some of them. If the status comes again without them, they are used again.
    pub(super) fn refused_open(&self, fault: Fault, used: UsedFeatures) -> bool {
        let known = &mut *self.0.lock();
        let suspects = bits(suspects_of_open(fault)) & !known.accepted;
        if suspects & !used.refused == 0 {
            known.refused &= !suspects;
            return false;
        }
        known.refused |= suspects;
        true
    }

    /// Sends a request, and repeats it without what the server may have meant by its status: one
    /// feature after the other, and then without all of them. What changes the status is
    /// remembered.
    pub(super) fn as_accepted<T, A>(
        &self,
        suspects: impl Fn(Fault) -> &'static [ServerFeature],
        send: impl Fn(UsedFeatures) -> Answer<T, A>,
    ) -> Answer<T, A> {
        let mut answer = send(self.used())?;
        'status: while let Some(fault) = answer.outcome.as_ref().err().copied() {
            let unknown = self.unknown(suspects(fault));
            let all = (unknown.len() > 1).then(|| unknown.clone());
            for suspected in unknown.iter().map(|feature| vec![*feature]).chain(all) {
                let other = send(self.used().without(&suspected))?;
                if other.outcome.as_ref().err() != Some(&fault) {
                    self.0.lock().refused |= bits(&suspected);
                    let names: Vec<_> = suspected.iter().map(|feature| feature.name()).collect();
                    tracing::info!("the server refuses {}: it is not used", names.join(" and "));
                    answer = other;
                    continue 'status;
                }
            }
            break;
        }
        Ok(answer)
    }

    /// An OPEN by handle that used these features was executed.
    pub(super) fn accepted_open(&self, used: UsedFeatures) {
        let accepted = bits(&[ServerFeature::DelegationWishes, ServerFeature::OpenByHandle]) & !used.refused;
        let known = &mut *self.0.lock();
        known.accepted |= accepted;
        // Another OPEN was refused for another reason.
        known.refused &= !accepted;
    }
}

/// The features that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedFeatures {
    /// Those that it does without, by their bits.
    refused: u8,
}

impl UsedFeatures {
    pub(super) const fn has(self, feature: ServerFeature) -> bool {
        self.refused & feature.bit() == 0
    }

    fn without(self, features: &[ServerFeature]) -> Self {
        Self { refused: self.refused | bits(features) }
    }

    /// The wish of an OPEN about a delegation; none if the server does not take one.
    pub(super) const fn wish(self, wants_delegation: bool) -> u32 {
        match (self.has(ServerFeature::DelegationWishes), wants_delegation) {
            (false, _) => 0,
            (true, true) => ShareAccess4::WANT_READ_DELEG,
            (true, false) => ShareAccess4::WANT_NO_DELEG,
        }
    }
}

fn bits(features: &[ServerFeature]) -> u8 {
    features.iter().fold(0, |all, feature| all | feature.bit())
}

/// The features that a server may lack if it refuses an OPEN by handle.
pub(super) const fn suspects_of_open(fault: Fault) -> &'static [ServerFeature] {
    match fault {
        Fault::Inval => &[ServerFeature::DelegationWishes],
        Fault::Notsupp => &[ServerFeature::OpenByHandle],
        _ => &[],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end in a panic")]
mod tests {
    use super::*;
    use crate::protocol::NfsReply;

    fn identity(implementation: &str, scope: &[u8]) -> ServerIdentity {
        let implementation = implementation.to_owned();
        ServerIdentity { owner: vec![1], scope: scope.to_vec(), implementation, build: (Vec::new(), None) }
    }

    #[test]
    fn a_status_that_comes_again_was_about_something_else() {
        let server = ServerTraits::default();
        let at = std::time::Instant::now();
        let refuse = |fault| {
            server.as_accepted(suspects_of_open, |_| {
                Ok(NfsReply { sent_at: at, lost_at: None, outcome: Err::<(), _>(fault), attributes: () })
            })
        };
        assert_eq!(refuse(Fault::Inval).unwrap().outcome, Err(Fault::Inval));
        assert!(server.has(ServerFeature::DelegationWishes));
        let answers = std::cell::Cell::new(0);
        let other = server.as_accepted(suspects_of_open, |used| {
            let fault = if answers.replace(1) == 0 { Fault::Inval } else { Fault::Acces };
            assert_eq!(used.has(ServerFeature::DelegationWishes), fault == Fault::Inval);
            assert!(server.has(ServerFeature::DelegationWishes), "it is not certain yet");
            Ok(NfsReply { sent_at: at, lost_at: None, outcome: Err::<(), _>(fault), attributes: () })
        });
        assert_eq!(other.unwrap().outcome, Err(Fault::Acces));
        assert!(!server.has(ServerFeature::DelegationWishes), "without it there is another status");
    }

    #[test]
    fn a_refused_open_is_repeated_once_and_its_features_are_used_again_if_that_changes_nothing() {
        let server = ServerTraits::default();
        for _ in 0..2 {
            let with = server.used();
            assert!(server.refused_open(Fault::Inval, with));
            assert!(server.refused_open(Fault::Inval, with), "so is one that was sent before");
            let without = server.used();
            assert!(!without.has(ServerFeature::DelegationWishes));
            assert!(!server.refused_open(Fault::Inval, without), "the status has come again");
            assert!(server.has(ServerFeature::DelegationWishes));
        }
        let with = server.used();
        assert!(server.refused_open(Fault::Inval, with));
        server.accepted_open(with);
        assert!(server.has(ServerFeature::DelegationWishes), "an OPEN with it was executed");
        assert!(!server.refused_open(Fault::Inval, with));
    }

    // SEMANTICS: sessions-19.
    #[test]
    fn what_a_server_refuses_is_remembered_for_its_implementation() {
        let server = ServerTraits::default();
        assert!(server.exchanged(identity("one 1", b"a")), "nothing is to be reclaimed");
        assert!(server.refused_open(Fault::Inval, server.used()));
        assert!(!server.has(ServerFeature::DelegationWishes) && server.has(ServerFeature::OpenByHandle));
        server.accepted_open(server.used());
        assert!(!server.refused_open(Fault::Notsupp, server.used()), "it was accepted");
        assert!(!server.refused_open(Fault::Acces, server.used()));
        assert_eq!(server.report(), ("one 1".to_owned(), vec!["OPEN4_SHARE_ACCESS_WANT bits"]));
        assert!(server.exchanged(identity("one 1", b"a")));
        assert!(!server.has(ServerFeature::DelegationWishes));
        assert!(!server.exchanged(identity("one 2", b"b")), "of another scope");
        assert!(server.has(ServerFeature::DelegationWishes), "the next version may have it");
        assert!(server.refused_open(Fault::Inval, server.used()));
        let date = NfsTime4 { seconds: 1, nanoseconds: 0 };
        let rebuilt = ServerIdentity { build: (Vec::new(), Some(date)), ..identity("one 2", b"b") };
        assert!(server.exchanged(rebuilt));
        assert!(server.has(ServerFeature::DelegationWishes), "so may another build of the same name");
    }
}
