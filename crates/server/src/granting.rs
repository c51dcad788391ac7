//! Resolves a handle and a credential to a [`Target`]: signature, export, rules, identity. Each step is skipped where the
//! connection remembers its result ([`Grants`]).

use std::net::SocketAddr;
use std::sync::Arc;

use curt_proto::nfs3::{FileHandle, Status};
use curt_rpc::auth::AuthStatus;
use curt_rpc::server::CallFailure;
use curt_trace::events::{Short, handle_hash};
use curt_trace::stages::{self, Stage};
use curt_trace::{ServerCounter, probe};
use curt_vfs::Waits;

use crate::exports::{Decided, Export, ExportRules, Managed, subtree};
use crate::file_handle::Signed;
use crate::grants::{Grant, Grants, Who};
use crate::identity::Identity;
use crate::request::{Refusal, Request, Target};

impl<'r, 'c> Request<'r, 'c> {
    /// Resolves a handle for this caller.
    pub(crate) fn resolve(&mut self, handle: &FileHandle) -> Result<Target<'r>, Refusal> {
        let _stage = stages::enter(Stage::Handle, "handle");
        let who = self.who()?;
        let grants = self.remembered();
        // Read before anything is decided under it: a reload in between then makes the grant outdated.
        let generation = self.service.exports.generation();
        let counters = &self.service.counters;
        let known = grants.and_then(|grants| grants.find(generation, handle, &who));
        let hit = known.is_some();
        let grant = if let Some(grant) = known {
            counters.count(ServerCounter::TokenHit);
            verified(handle, hit, Status::Ok);
            grant
        } else {
            counters.count(ServerCounter::TokenMiss);
            let signed = self.service.key.verify(handle);
            verified(handle, hit, signed.as_ref().err().copied().unwrap_or(Status::Ok));
            let signed = signed?;
            let grant = self.grant(generation, handle, signed, who)?;
            match grants {
                Some(grants) => grants.keep(grant),
                None => Arc::new(grant),
            }
        };
        self.checked(grant)
    }

    /// Resolves the contents of a handle that this server made, for this caller.
    pub(crate) fn target(&mut self, signed: Signed) -> Result<Target<'r>, Refusal> {
        let who = self.who()?;
        let generation = self.service.exports.generation();
        let handle = self.service.key.sign(&signed);
        let grant = self.grant(generation, &handle, signed, who)?;
        self.checked(Arc::new(grant))
    }

    fn who(&self) -> Result<Who, Refusal> {
        Who::of(self.credential).ok_or_else(|| CallFailure::Denied(AuthStatus::TooWeak).into())
    }

    /// What this connection remembers.
    fn remembered(&self) -> Option<&'c Arc<Grants>> {
        self.context.memory(|| self.service.grants.begin())
    }

    /// Decides export, rules and identity, as far as the connection does not remember them.
    fn grant(
        &mut self,
        generation: u64,
        handle: &FileHandle,
        signed: Signed,
        who: Who,
    ) -> Result<Grant, Refusal> {
        let (export, rules) = self.decide(generation, &signed, &who)?;
        let identity = self.identify(generation, &rules, who)?;
        Ok(Grant {
            generation,
            handle: *handle,
            who,
            signed,
            export,
            rules,
            identity,
        })
    }

    /// Checks what has to be checked on every request. If anything may take long, another thread goes on reading the connection.
    fn checked(&mut self, grant: Arc<Grant>) -> Result<Target<'r>, Refusal> {
        // subtree_check searches the file system: the path up, and a directory, perhaps a long one, for the file's name.
        if grant.export.vfs.waits() == Waits::Always || grant.rules.subtree_check {
            self.context.may_block();
        }
        if grant.rules.subtree_check {
            let _stage = stages::enter(Stage::Permission, "subtree");
            let Signed { node, parent, .. } = &grant.signed;
            let (tree, places) = (&*grant.export.vfs, &grant.export.places);
            subtree::check((tree, places), &grant.identity.caller(), node, parent.as_ref())?;
        }
        Ok(Target::new(self.service, grant))
    }

    /// The export that a handle belongs to, and the rules for this caller.
    fn decide(
        &mut self,
        generation: u64,
        signed: &Signed,
        who: &Who,
    ) -> Result<(Arc<Export>, ExportRules), Refusal> {
        let _stage = stages::enter(Stage::Export, "export");
        let service = self.service;
        let (exports, counters) = (&service.exports, &service.counters);
        let of = (signed.export, signed.file_system);
        let known = self
            .remembered()
            .and_then(|grants| grants.decision(generation, of, who.flavor));
        if let Some(known) = known {
            counters.count(ServerCounter::ExportHit);
            decided(&known.0, self.context.peer(), true);
            return Ok(known);
        }
        counters.count(ServerCounter::ExportMiss);
        let deadline = exports.deadline();
        let (export, rules) = loop {
            let peer = self.context.peer();
            match exports.current().decide(peer, Some(who.flavor), of) {
                Decided::Open(export, rules) => break (export, rules),
                Decided::Refused(refusal) => return Err(refusal),
                Decided::Unknown(question) => {
                    // No lock is held while waiting, and other calls of this connection need not wait as well.
                    self.context.may_block();
                    if !exports.names().wait(&question, deadline) {
                        return Err(Status::Jukebox.into());
                    }
                }
            }
        };
        decided(&export, self.context.peer(), false);
        if let Some(grants) = self.remembered() {
            grants.keep_decision(generation, of, who.flavor, (&export, rules));
        }
        Ok((export, rules))
    }

    /// The caller's identity under an export's rules.
    fn identify(&mut self, generation: u64, rules: &ExportRules, who: Who) -> Result<Arc<Identity>, Refusal> {
        let _stage = stages::enter(Stage::Identity, "identity");
        let counters = &self.service.counters;
        let known = self
            .remembered()
            .and_then(|grants| grants.identity(generation, &who, rules));
        if let Some(known) = known {
            counters.count(ServerCounter::IdentityHit);
            probe!(NfsdIdentity {
                uid: known.caller().uid,
                hit: true
            });
            return Ok(known);
        }
        counters.count(ServerCounter::IdentityMiss);
        let sent = Identity::of(self.credential, rules)
            .map_err(|status| Refusal::Call(CallFailure::Denied(status)))?;
        let identity = Arc::new(match Identity::managed_uid(self.credential, rules) {
            Some(uid) => self.with_groups_of(uid, sent, rules)?,
            // The anonymous user has no groups but its own where those of users are this machine's to say.
            None if self.service.exports.manages_groups() => sent.without_groups(),
            None => sent,
        });
        probe!(NfsdIdentity {
            uid: identity.caller().uid,
            hit: false
        });
        if let Some(grants) = self.remembered() {
            grants.keep_identity(generation, who, *rules, &identity);
        }
        Ok(identity)
    }

    /// The caller with the groups that this machine knows for it, if `--manage-gids` is on.
    fn with_groups_of(&mut self, uid: u32, sent: Identity, rules: &ExportRules) -> Result<Identity, Refusal> {
        let exports = &self.service.exports;
        let deadline = exports.deadline();
        loop {
            match exports.groups_of(uid) {
                Managed::AsSent => return Ok(sent),
                Managed::Groups(groups) => return Ok(sent.with_groups(groups, rules)),
                Managed::Unknown(question) => {
                    self.context.may_block();
                    if !exports.names().wait(&question, deadline) {
                        return Err(Status::Jukebox.into());
                    }
                }
            }
        }
    }
}

/// Emits the event that a handle was verified or refused; `hit`: the connection remembered it.
fn verified(handle: &FileHandle, hit: bool, status: Status) {
    probe!(NfsdFhVerify {
        fhandle: handle_hash(handle.as_bytes()),
        hit,
        status: status as u32
    });
}

/// Emits the event that a client may use an export.
fn decided(export: &Export, peer: SocketAddr, hit: bool) {
    probe!(NfsdExport {
        export: export.path(),
        peer: Short::of(peer).bytes(),
        hit,
        status: 0_u32
    });
}
