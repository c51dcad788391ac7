//! The user of a call.

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::call::Actor;

/// The other user, and its group.
const USER: u32 = 1000;

/// Runs `call` as that user. Ids are per thread, and there is only one.
pub(crate) fn as_actor<T>(actor: Actor, call: impl FnOnce() -> T) -> T {
    if actor == Actor::Root {
        return call();
    }
    become_user(USER, &[Gid::from_raw(USER)]);
    let result = call();
    become_user(0, &[]);
    result
}

/// The saved ids remain root's, so that the change can be reverted.
fn become_user(number: u32, groups: &[Gid]) {
    let (user, group, root) = (Uid::from_raw(number), Gid::from_raw(number), Uid::ROOT);
    let switched = if number == 0 {
        set_thread_res_uid(root, root, root)
            .and_then(|()| set_thread_res_gid(group, group, Gid::ROOT))
            .and_then(|()| set_thread_groups(groups))
    } else {
        set_thread_groups(groups)
            .and_then(|()| set_thread_res_gid(group, group, Gid::ROOT))
            .and_then(|()| set_thread_res_uid(user, user, root))
    };
    switched.expect("root may become anybody");
}
