//! The locked state of a [sequence](super::sequence): its places in order, and where the server
//! continues behind them.

use std::sync::Arc;

use curt_policy::complete::ListingScan;
use curt_proto::nfs3::CookieVerifier;
use hashbrown::HashTable;

use super::{
    chunk::{ListingChunk, ListingPosition, ReaddirCookie},
    fetch::ListingOrigin,
    in_flight::ReaddirInFlight,
    memory::ListingMemoryCharge,
};

/// A chunk's place, which stays when the chunk is let go.
#[derive(Debug)]
pub(super) struct ChunkSlot {
    /// How many names come before.
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) after: ReaddirCookie,
    pub(super) chunk: Option<Arc<ListingChunk>>,
}

/// What changes of a sequence.
#[derive(Debug, Default)]
pub(super) struct DirectoryListingState {
    pub(super) chunks: Vec<ChunkSlot>,
    pub(super) count: u32,
    pub(super) cookies: HashTable<u32>,
    /// Made when first needed.
    pub(super) names: Option<HashTable<u32>>,
    /// How many of the names are in it, from the first one on.
    pub(super) names_indexed: u32,
    /// Where the server goes on behind the last place.
    pub(super) end: ReaddirCookie,
    pub(super) is_complete: bool,
    pub(super) is_broken: bool,
    pub(super) is_evicted: bool,
    pub(super) learned: Option<ListingOrigin>,
    /// When it was last used to say that a name is missing, which all of its names are needed for.
    pub(super) answered_at: u64,
    /// What the replies prove of all the names together.
    pub(super) scan: Option<ListingScan>,
    /// A request for what follows.
    pub(super) request: Option<Arc<ReaddirInFlight>>,
    /// What was asked for ahead did not come: it is asked for again when it is wanted.
    pub(super) has_readahead_failed: bool,
    /// In how many bytes the last names came.
    pub(super) size: u32,
    /// The largest cookie that the server gave.
    pub(super) cookie_max: u64,
    /// Names of our own making at its end, which no server can tell again: nothing is evicted.
    pub(super) local_names: usize,
    pub(super) pin: Option<ListingMemoryCharge>,
}

impl ChunkSlot {
    /// What the server was asked for its names with.
    pub(super) fn after(&self) -> ReaddirCookie {
        self.after
    }
}

impl DirectoryListingState {
    /// The verifier of the cookies of this place.
    pub(super) fn verifier_behind(&self, place: usize) -> CookieVerifier {
        let next = self.chunks.get(place + 1);
        next.map_or(self.end, |next| next.after).verifier
    }

    pub(super) fn cookie(&self, ordinal: u32) -> Option<u64> {
        cookie_at(&self.chunks, ordinal)
    }

    /// Which chunk, and which of its names.
    pub(super) fn position(&self, ordinal: u32) -> Option<ListingPosition> {
        position_of(&self.chunks, ordinal)
    }
}

fn position_of(places: &[ChunkSlot], ordinal: u32) -> Option<ListingPosition> {
    let place = places.partition_point(|place| place.first + place.count <= ordinal);
    let name = ordinal - places.get(place)?.first;
    Some(ListingPosition {
        place,
        name: name as usize,
    })
}

pub(super) fn cookie_at(places: &[ChunkSlot], ordinal: u32) -> Option<u64> {
    let position = position_of(places, ordinal)?;
    places[position.place].chunk.as_ref()?.cookie(position.name)
}
