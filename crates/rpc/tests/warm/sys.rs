//! Counts allocations of the process, of chosen threads and of this thread; also for tests of other
//! crates.
//!
//! JUSTIFICATION: the allocator is an unsafe trait; no other interface sees each allocation.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]
#![allow(dead_code, reason = "a test needs one of the counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

static COUNT: AtomicUsize = AtomicUsize::new(0);
static COUNT_CHOSEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNT_HERE: Cell<usize> = const { Cell::new(0) };
    static IS_CHOSEN: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations of all threads so far.
pub(crate) fn allocations() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// Number of allocations so far of the threads that have called [`choose_this_thread`], since then.
pub(crate) fn allocations_chosen() -> usize {
    COUNT_CHOSEN.load(Ordering::SeqCst)
}

/// Includes this thread in [`allocations_chosen`].
pub(crate) fn choose_this_thread() {
    IS_CHOSEN.set(true);
}

/// Number of allocations of this thread so far.
pub(crate) fn allocations_here() -> usize {
    COUNT_HERE.get()
}

// SAFETY: each call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::SeqCst);
        if IS_CHOSEN.get() {
            COUNT_CHOSEN.fetch_add(1, Ordering::SeqCst);
        }
        COUNT_HERE.set(COUNT_HERE.get() + 1);
        // SAFETY: the caller's guarantee about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` was returned by the call above with this `layout`, as the caller
        // guarantees.
        unsafe { System.dealloc(pointer, layout) }
    }
}
