//! Resolves a handle and a credential to a [`VerifiedHandle`]: signature, export, rules, identity.
//! A step is skipped if the connection has cached its result ([`AuthorisationCache`]).

use std::net::SocketAddr;
use std::sync::Arc;

use curt_observe::events::{ShortText, handle_hash};
use curt_observe::stages::{self, RequestStage};
use curt_observe::{ServerCounter, probe};
use curt_proto::nfs3::NfsStat3;
use curt_rpc::auth::AuthStatus;
use curt_rpc::server::CallFailure;
use curt_types::{Fault, FileHandle};
use curt_vfs::MayBlock;

use crate::authorisation_cache::{Authorisation, AuthorisationCache, CallerCredential, ExportKey};
use crate::exports::{Export, ExportDecision, ExportRules, ManagedGroups, subtree};
use crate::file_handle::HandleContents;
use crate::request::{NfsRequest, Refusal, VerifiedHandle};
use crate::squash::SquashedIdentity;

impl<'r, 'c> NfsRequest<'r, 'c> {
    /// Resolves a handle for this caller.
    pub(crate) fn resolve(&mut self, handle: &[u8]) -> Result<VerifiedHandle<'r>, Refusal> {
        let _stage = stages::enter(RequestStage::Handle, "handle");
        let who = self.caller_credential()?;
        let grants = self.authorisation_cache();
        // Read before the decision: a reload in between makes the grant outdated.
        let generation = self.service.exports.generation();
        let counters = &self.service.counters;
        let known = grants.and_then(|grants| grants.find(generation, handle, &who));
        let hit = known.is_some();
        let grant = if let Some(grant) = known {
            counters.count(ServerCounter::TokenHit);
            trace_verified(handle, hit, None);
            grant
        } else {
            counters.count(ServerCounter::TokenMiss);
            let signed = self.service.key.verify(handle);
            trace_verified(handle, hit, signed.as_ref().err().copied());
            let signed = signed?;
            let handle = FileHandle::new(handle).map_err(|_| Fault::Badhandle)?;
            let grant = self.authorise(generation, handle, signed, who)?;
            match grants {
                Some(grants) => grants.insert(grant),
                None => Arc::new(grant),
            }
        };
        self.check_request(grant)
    }

    /// Resolves decoded contents of a handle for this caller. The handle is signed again.
    pub(crate) fn target(&mut self, signed: HandleContents) -> Result<VerifiedHandle<'r>, Refusal> {
        let who = self.caller_credential()?;
        let generation = self.service.exports.generation();
        let handle = self.service.key.sign(&signed);
        let grant = self.authorise(generation, handle, signed, who)?;
        self.check_request(Arc::new(grant))
    }

    fn caller_credential(&self) -> Result<CallerCredential, Refusal> {
        CallerCredential::of(self.credential).ok_or_else(|| CallFailure::Denied(AuthStatus::TooWeak).into())
    }

    /// The authorisation cache of this connection.
    fn authorisation_cache(&self) -> Option<&'c Arc<AuthorisationCache>> {
        self.connection_data().map(|connection| &connection.authorisations)
    }

    /// Decides export, rules and identity, or takes them from the connection's cache.
    fn authorise(
        &mut self,
        generation: u64,
        handle: FileHandle,
        signed: HandleContents,
        who: CallerCredential,
    ) -> Result<Authorisation, Refusal> {
        let (export, rules) = self.decide(generation, &signed, &who)?;
        let identity = self.identify(generation, &rules, who)?;
        Ok(Authorisation { generation, handle, who, signed, export, rules, identity })
    }

    /// The checks that every request needs. If one may take long, the thread first hands the
    /// connection over.
    fn check_request(&mut self, grant: Arc<Authorisation>) -> Result<VerifiedHandle<'r>, Refusal> {
        // subtree_check accesses the file system: the parents, and perhaps a long directory, for
        // the file's name.
        if grant.export.vfs.may_block() == MayBlock::Always || grant.rules.subtree_check {
            self.context.may_block();
        }
        if grant.rules.subtree_check {
            let _stage = stages::enter(RequestStage::Permission, "subtree");
            let HandleContents { node, parent, .. } = &grant.signed;
            let (tree, places) = (&*grant.export.vfs, &grant.export.subtree_cache);
            let (caller, now) = (grant.identity.caller(), self.service.clock.wall_clock());
            subtree::check(tree, places, &caller, node, parent.as_ref(), now)?;
        }
        Ok(VerifiedHandle::new(self.service, grant))
    }

    /// The export that a handle belongs to, and the rules for this caller.
    fn decide(
        &mut self,
        generation: u64,
        signed: &HandleContents,
        who: &CallerCredential,
    ) -> Result<(Arc<Export>, ExportRules), Refusal> {
        let _stage = stages::enter(RequestStage::Export, "export");
        let service = self.service;
        let (exports, counters) = (&service.exports, &service.counters);
        let of = ExportKey { export: signed.export, file_system: signed.file_system };
        let known =
            self.authorisation_cache().and_then(|grants| grants.find_decision(generation, of, who.flavor));
        if let Some(known) = known {
            counters.count(ServerCounter::ExportHit);
            decided(&known.0, self.context.peer(), true);
            return Ok(known);
        }
        counters.count(ServerCounter::ExportMiss);
        let deadline = exports.deadline();
        let (export, rules) = loop {
            let peer = self.context.peer();
            match exports.current().decide(peer, Some(who.flavor), signed.export, signed.file_system) {
                ExportDecision::Open(export, rules) => break (export, rules),
                ExportDecision::Refused(refusal) => return Err(refusal),
                ExportDecision::Unknown(question) => {
                    // No lock is held during the wait, and the connection is handed over, so that
                    // its other calls do not wait.
                    self.context.may_block();
                    if !exports.names().wait(&question, deadline) {
                        return Err(Fault::Jukebox.into());
                    }
                }
            }
        };
        decided(&export, self.context.peer(), false);
        if let Some(grants) = self.authorisation_cache() {
            grants.insert_decision(generation, of, who.flavor, &export, rules);
        }
        Ok((export, rules))
    }

    /// The caller's identity under an export's rules.
    fn identify(
        &mut self,
        generation: u64,
        rules: &ExportRules,
        who: CallerCredential,
    ) -> Result<Arc<SquashedIdentity>, Refusal> {
        let _stage = stages::enter(RequestStage::Identity, "identity");
        let counters = &self.service.counters;
        let known =
            self.authorisation_cache().and_then(|grants| grants.find_identity(generation, &who, rules));
        if let Some(known) = known {
            counters.count(ServerCounter::IdentityHit);
            probe!(NfsdIdentity { uid: known.caller().uid, hit: true });
            return Ok(known);
        }
        counters.count(ServerCounter::IdentityMiss);
        let sent = SquashedIdentity::of(self.credential, rules)
            .map_err(|status| Refusal::Call(CallFailure::Denied(status)))?;
        let identity = Arc::new(match SquashedIdentity::managed_uid(self.credential, rules) {
            Some(uid) => self.with_groups_of(uid, sent, rules)?,
            // The anonymous user has only its own group if groups come from this machine's user
            // database.
            None if self.service.exports.manages_groups() => sent.without_groups(),
            None => sent,
        });
        probe!(NfsdIdentity { uid: identity.caller().uid, hit: false });
        if let Some(grants) = self.authorisation_cache() {
            grants.insert_identity(generation, who, *rules, &identity);
        }
        Ok(identity)
    }

    /// The caller with the groups of this machine's user database, if `--manage-gids` is on.
    fn with_groups_of(
        &mut self,
        uid: u32,
        sent: SquashedIdentity,
        rules: &ExportRules,
    ) -> Result<SquashedIdentity, Refusal> {
        let exports = &self.service.exports;
        let deadline = exports.deadline();
        loop {
            match exports.groups_of(uid) {
                ManagedGroups::AsSent => return Ok(sent),
                ManagedGroups::Groups(groups) => return Ok(sent.with_groups(groups, rules)),
                ManagedGroups::Unknown(question) => {
                    self.context.may_block();
                    if !exports.names().wait(&question, deadline) {
                        return Err(Fault::Jukebox.into());
                    }
                }
            }
        }
    }
}

/// Emits the event that a handle was verified or refused; `hit`: by the connection's cache.
fn trace_verified(handle: &[u8], hit: bool, fault: Option<Fault>) {
    probe!(NfsdFhVerify {
        fhandle: handle_hash(handle),
        hit,
        status: fault.map_or(NfsStat3::Ok, NfsStat3::from).number()
    });
}

/// Emits the event that a client may use an export.
fn decided(export: &Export, peer: SocketAddr, hit: bool) {
    probe!(NfsdExport { export: export.path(), peer: ShortText::of(peer).bytes(), hit, status: 0_u32 });
}
