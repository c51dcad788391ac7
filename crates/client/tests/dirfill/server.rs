//! A scripted server of a [`Tree`] that returns false data if a test requests it.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use curt_proto::nfs3::{NfsProcedure, NfsStat3};
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use parking_lot::Mutex;

use crate::{
    tree::{Named, ROOT, Tree},
    world::Ticking,
};

/// Seconds since 1970 at the start of a world; odd, so that the clock does not look coarser than it
/// is.
const BEGIN: u64 = 1_700_000_001;

/// The fault of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lie {
    #[default]
    None,
    /// READDIRPLUS fails with this status.
    RefusesPlus(NfsStat3),
    /// This name, or all if `None`, has no attributes in a reply.
    NoAttributes(Option<&'static str>),
    /// ... no handle.
    NoHandles(Option<&'static str>),
    /// Listings have no directory attributes.
    NoDirectoryAttributes,
    /// A listing contains this name twice. The first or the last one has the handle and attributes
    /// of the other name.
    Doubled(&'static str, &'static str, At),
    /// `.` and `..` have the handle and attributes of this name.
    Dots(&'static str),
    /// Listings never end: further names follow the last one.
    Endless,
    /// ... no names and no end follow the last one.
    Mute,
    /// One name of a listing is replaced with this.
    Name(&'static [u8]),
    /// Each reply of a listing has another verifier, and every cookie is refused afterwards.
    NewVerifiers,
    /// Names in a listing have the attributes of others.
    OthersAttributes,
    /// READDIRPLUS is not supported.
    NoPlus,
    /// Names that differ only in case are equal.
    IgnoresCase,
    /// This name exists and is not listed.
    Unlisted(&'static str),
    /// MKDIR returns no handle, and LOOKUP of this name fails with IO.
    NoHandleOfNew(&'static str),
}

/// The position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    First,
    Last,
}

/// A change of the tree before the reply of a listing with this number.
type Event = (usize, Box<dyn FnOnce(&mut Tree) + Send>);

pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) lie: Lie,
    /// Maximum number of names in a reply.
    pub(crate) names_max: usize,
    /// The resolution of the server's clock.
    pub(crate) step: Duration,
    pub(crate) asked: BTreeMap<u32, u64>,
    /// For each object, the newest state in a reply.
    pub(crate) told: RefCell<BTreeMap<u64, Duration>>,
    /// The number of listings since the events were set.
    pub(crate) listings: usize,
    pub(crate) events: Vec<Event>,
}

/// The server and the time.
pub(crate) struct Server {
    pub(crate) state: Mutex<State>,
    pub(crate) clock: Arc<Ticking>,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn opaque(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl State {
    fn fattr(&self, id: u64) -> Vec<u8> {
        let node = &self.tree.nodes[&id];
        let mut told = self.told.borrow_mut();
        let newest = told.entry(id).or_default();
        *newest = node.changed.max(*newest);
        let is_directory = node.names.is_some();
        let mut out = words(&[if is_directory { 2 } else { 1 }, node.mode, 1, 1000, 1000]);
        for value in [node.size, 4096, 0, node.fsid, id] {
            out.extend(value.to_be_bytes());
        }
        // All three times are that of the last change.
        (0..3).for_each(|_| out.extend(self.time(node.changed)));
        out
    }

    /// A time in the resolution of the server's clock.
    fn time(&self, moment: Duration) -> Vec<u8> {
        let beyond = moment.as_nanos() % self.step.as_nanos();
        let told = moment - Duration::from_nanos(u64::try_from(beyond).unwrap());
        words(&[u32::try_from(BEGIN + told.as_secs()).unwrap(), told.subsec_nanos()])
    }

    /// A directory's attributes before a change of its names.
    fn before(&self, id: u64) -> Vec<u8> {
        let node = &self.tree.nodes[&id];
        let time = self.time(node.changed);
        [&words(&[1])[..], &node.size.to_be_bytes(), &time, &time].concat()
    }

    fn make_directory(&mut self, parent: u64, name: &[u8]) -> Vec<u8> {
        let before = self.before(parent);
        let id = self.tree.directory(parent, &String::from_utf8_lossy(name));
        if matches!(self.lie, Lie::NoHandleOfNew(_)) {
            return [words(&[0, 0, 0]), before, self.post(parent)].concat();
        }
        let mut out = words(&[0, 1]);
        opaque(&id.to_be_bytes(), &mut out);
        [out, self.post(id), before, self.post(parent)].concat()
    }

    /// Optional attributes.
    fn post(&self, id: u64) -> Vec<u8> {
        match self.tree.nodes.contains_key(&id) {
            true => [words(&[1]), self.fattr(id)].concat(),
            false => words(&[0]),
        }
    }

    fn refused(&self, status: NfsStat3, id: u64) -> Vec<u8> {
        [words(&[status.number()]), self.post(id)].concat()
    }

    fn getattr(&self, id: u64) -> Vec<u8> {
        match self.tree.nodes.contains_key(&id) {
            true => [words(&[0]), self.fattr(id)].concat(),
            false => words(&[NfsStat3::Stale.number()]),
        }
    }

    fn lookup(&self, directory: u64, name: &[u8]) -> Vec<u8> {
        if !self.tree.nodes.contains_key(&directory) {
            return self.refused(NfsStat3::Stale, directory);
        }
        if matches!(self.lie, Lie::NoHandleOfNew(new) if new.as_bytes() == name) {
            return self.refused(NfsStat3::Io, directory);
        }
        let found = match name {
            b".." => Some(self.tree.nodes[&directory].parent),
            _ if self.lie == Lie::IgnoresCase => {
                let mut names = self.tree.names(directory).iter();
                let found = names.find(|named| named.name.eq_ignore_ascii_case(name));
                found.map(|named| named.id)
            }
            _ => self.tree.find(directory, name),
        };
        let Some(id) = found else {
            return self.refused(NfsStat3::Noent, directory);
        };
        let mut out = words(&[0]);
        opaque(&id.to_be_bytes(), &mut out);
        [out, self.post(id), self.post(directory)].concat()
    }

    fn list(&mut self, directory: u64, cookie: u64, (count, plus): (usize, bool)) -> Vec<u8> {
        let number = self.listings;
        self.listings += 1;
        while let Some(at) = self.events.iter().position(|(before, _)| *before == number) {
            let (_, event) = self.events.swap_remove(at);
            event(&mut self.tree);
        }
        if !self.tree.nodes.contains_key(&directory) {
            return words(&[NfsStat3::Stale.number(), 0]);
        }
        match self.lie {
            Lie::RefusesPlus(status) if plus => return self.refused(status, directory),
            Lie::NewVerifiers if cookie != 0 => return self.refused(NfsStat3::BadCookie, directory),
            _ => {}
        }
        let about = match self.lie {
            Lie::NoDirectoryAttributes => words(&[0]),
            _ => self.post(directory),
        };
        let verifier = if self.lie == Lie::NewVerifiers { number as u64 + 1 } else { 0 };
        let head = [words(&[0]), about, verifier.to_be_bytes().to_vec()].concat();
        let (mut entries, mut told) = (Vec::new(), 0);
        let all = self.listed(directory);
        let mut rest = all.iter().filter(|named| named.cookie > cookie).peekable();
        while let Some(named) = rest.peek() {
            let entry = self.entry(named, plus);
            if told == self.names_max || head.len() + entries.len() + entry.len() + 8 > count {
                break;
            }
            entries.extend(entry);
            told += 1;
            rest.next();
        }
        let is_end = rest.peek().is_none() && !matches!(self.lie, Lie::Endless | Lie::Mute);
        [head, entries, words(&[0, u32::from(is_end)])].concat()
    }

    /// The names of a listing, in order.
    fn listed(&self, directory: u64) -> Vec<Named> {
        let mut all = self.tree.names(directory).to_vec();
        match self.lie {
            Lie::Unlisted(name) => all.retain(|named| named.name != name.as_bytes()),
            Lie::Doubled(name, other, at) => {
                let id = self.tree.find(directory, other.as_bytes()).unwrap();
                let name = name.as_bytes().to_vec();
                match at {
                    At::First => all.insert(0, Named { name, id, cookie: 3 }),
                    At::Last => all.push(Named { name, id, cookie: 1 << 40 }),
                }
            }
            Lie::Dots(whose) => {
                let id = self.tree.find(directory, whose.as_bytes()).unwrap();
                for (cookie, name) in [(1, "."), (2, "..")] {
                    all.insert(0, Named { name: name.into(), id, cookie });
                }
                all.sort_by_key(|named| named.cookie);
            }
            Lie::Name(name) => all[1].name = name.to_vec(),
            Lie::Endless => {
                let last = all.last().unwrap().clone();
                all.extend((1..100_000).map(|more| Named {
                    name: format!("more{more}").into(),
                    cookie: (1 << 40) + more,
                    ..last.clone()
                }));
            }
            _ => {}
        }
        all
    }

    fn entry(&self, named: &Named, plus: bool) -> Vec<u8> {
        let mut out = words(&[1]);
        out.extend(named.id.to_be_bytes());
        opaque(&named.name, &mut out);
        out.extend(named.cookie.to_be_bytes());
        if !plus {
            return out;
        }
        let is_left_out = |name: Option<&str>| name.is_none_or(|name| name.as_bytes() == named.name);
        out.extend(match self.lie {
            Lie::NoAttributes(name) if is_left_out(name) => words(&[0]),
            Lie::OthersAttributes => self.post(ROOT),
            _ => self.post(named.id),
        });
        match self.lie {
            Lie::NoHandles(name) if is_left_out(name) => out.extend(words(&[0])),
            _ => {
                out.extend(words(&[1]));
                opaque(&named.id.to_be_bytes(), &mut out);
            }
        }
        out
    }
}

impl Transport for Server {
    fn call(&self, request: &RpcRequest<'_>, _: &Interrupt) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let id = word(&arguments, 4);
        self.clock.pass(Duration::from_micros(100));
        let mut state = self.state.lock();
        state.tree.now = self.clock.passed();
        *state.asked.entry(request.procedure).or_default() += 1;
        let count = || u32::from_be_bytes(arguments[arguments.len() - 4..].try_into().unwrap()) as usize;
        let name = || {
            let length = u32::from_be_bytes(arguments[12..16].try_into().unwrap()) as usize;
            &arguments[16..16 + length]
        };
        let results = match NfsProcedure::from_number(request.procedure).unwrap() {
            NfsProcedure::Getattr => state.getattr(id),
            NfsProcedure::Access => [words(&[0]), state.post(id), words(&[0x1f])].concat(),
            NfsProcedure::Lookup => state.lookup(id, name()),
            NfsProcedure::Mkdir => state.make_directory(id, name()),
            NfsProcedure::Readdir => state.list(id, word(&arguments, 12), (count(), false)),
            NfsProcedure::ReaddirPlus if state.lie == Lie::NoPlus => {
                return Err(CallError::ProcedureUnavailable);
            }
            NfsProcedure::ReaddirPlus => state.list(id, word(&arguments, 12), (count(), true)),
            other => panic!("{other:?} is not asked"),
        };
        drop(state);
        self.clock.pass(Duration::from_micros(100));
        if results.len() > request.results_max {
            return Err(CallError::Malformed(curt_xdr::DecodeError::Short));
        }
        Ok(CallReply::from_results(results))
    }
}
