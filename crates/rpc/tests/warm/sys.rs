//! Counts allocations of the process; also for tests of other crates.
//!
//! JUSTIFICATION: the allocator is an unsafe trait; no other interface sees each allocation.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations so far.
pub(crate) fn allocations() -> usize {
    COUNT.load(Ordering::SeqCst)
}

// SAFETY: each call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's guarantee about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` was returned by the call above with this `layout`, as the caller
        // guarantees.
        unsafe { System.dealloc(pointer, layout) }
    }
}
