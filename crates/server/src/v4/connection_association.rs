//! The sessions with which a connection is associated (RFC 8881 sections 2.10.5 and 2.10.8).
//! Without state protection, CREATE_SESSION and each request in a session associate it.
//! DESTROY_SESSION must come over such a connection (section 18.37.3).

use std::sync::atomic::{AtomicU64, Ordering};

use curt_proto::nfs4::SessionId;
use parking_lot::Mutex;

use super::Compound;
use crate::request::ConnectionData;

/// Maximum number of sessions of one connection that are known: of sixteen clients with as many
/// sessions as each may have. Beyond that the first is forgotten.
const SESSIONS_MAX: usize = 16 * 64;

/// The sessions of a connection, by the tags in their ids, which cannot be guessed.
#[derive(Default)]
pub(crate) struct AssociatedSessions {
    /// The session of the last request, so that the next one need not lock. Relaxed: a tag alone.
    last: AtomicU64,
    tags: Mutex<Vec<u64>>,
}

impl AssociatedSessions {
    fn add(&self, session: &SessionId) {
        let tag = tag(session);
        if self.last.load(Ordering::Relaxed) == tag {
            return;
        }
        let mut tags = self.tags.lock();
        if !tags.contains(&tag) {
            if tags.len() >= SESSIONS_MAX {
                tags.remove(0);
            }
            tags.push(tag);
        }
        self.last.store(tag, Ordering::Relaxed);
    }

    fn contains(&self, session: &SessionId) -> bool {
        let tag = tag(session);
        self.last.load(Ordering::Relaxed) == tag || self.tags.lock().contains(&tag)
    }
}

fn tag(session: &SessionId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = session.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl Compound<'_, '_> {
    /// Associates the connection of the request with a session.
    pub(super) fn associate(&self, session: &SessionId) {
        if let Some(connection) = self.connection() {
            connection.sessions.add(session);
        }
    }

    /// Whether the connection of the request is associated with a session; a request without a
    /// socket is.
    pub(super) fn is_associated(&self, session: &SessionId) -> bool {
        self.connection().is_none_or(|connection| connection.sessions.contains(session))
    }

    fn connection(&self) -> Option<&ConnectionData> {
        self.request.connection_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sessions_of_a_connection_are_known() {
        let session = |number: usize| {
            let mut id = [0; 16];
            id[8..].copy_from_slice(&(number as u64 + 1).to_be_bytes());
            SessionId(id)
        };
        let associated = AssociatedSessions::default();
        assert!(!associated.contains(&session(0)));
        for number in [0, 1, 0] {
            associated.add(&session(number));
        }
        assert!(associated.contains(&session(0)) && associated.contains(&session(1)));
        (2..=SESSIONS_MAX).for_each(|number| associated.add(&session(number)));
        assert!(!associated.contains(&session(0)) && associated.contains(&session(1)));
        assert!(associated.contains(&session(SESSIONS_MAX)));
    }
}
