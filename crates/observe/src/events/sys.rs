//! The USDT probes to which other programs attach, the word of each event with its destinations,
//! and the memory of the ring.
//!
//! JUSTIFICATION: a probe is a note in the program's file that names an instruction, an argument
//! list and a counter (`.note.stapsdt`, as SystemTap, bpftrace, perf and gdb know it); only
//! assembly can write such notes. A mapped file outlives a process that is killed; safe Rust cannot
//! map one.
//!
//! The counter ("semaphore") is the lower half of the event's word in [`WANTED`]: the kernel counts
//! the attached programs in it. The upper half has a bit for each buffer that receives the event.
//! So one load covers both.

#![allow(unsafe_code)]

use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::event::Event;
use super::fields::FieldValue;
use super::record::{FIELDS_MAX, TEXT_MAX, TEXTS_MAX};
use super::table::with_events;

/// The receivers of each event: a count of attached programs in the lower half, a bit for each
/// buffer in the upper one. In a section of its own in the program's file, because the kernel finds
/// the counter by its position there.
// SAFETY: the name of the section means nothing to the linker; the memory is ordinary, writable and
// zero.
#[unsafe(link_section = ".probes")]
#[used]
static WANTED: [AtomicU32; Event::COUNT] = [const { AtomicU32::new(0) }; Event::COUNT];

/// The bits of [`WANTED`] in which the kernel counts.
pub(super) const PROBED: u32 = 0xffff;

#[inline]
pub(super) fn wanted(event: Event) -> u32 {
    // Relaxed: a thread that misses a change for one event sees it for the next.
    WANTED[event.index()].load(Ordering::Relaxed)
}

/// Enables the event for the buffer of this bit.
pub(super) fn want(event: Event, bit: u32) {
    WANTED[event.index()].fetch_or(bit, Ordering::Relaxed);
}

/// Disables it for that buffer.
pub(super) fn stop_wanting(event: Event, bit: u32) {
    WANTED[event.index()].fetch_and(!bit, Ordering::Relaxed);
}

/// The arguments for an attached program: a word for each field; for a text, the address of its
/// NUL-terminated bytes.
struct ProbeArguments {
    words: [u64; FIELDS_MAX],
    /// Copied to the stack, which is resident: attached programs read memory without causing page
    /// faults.
    texts: [[u8; TEXT_MAX + 1]; TEXTS_MAX],
}

/// Fires an event's probe.
#[cold]
#[inline(never)]
pub(super) fn fire(event: Event, values: &[FieldValue<'_>]) {
    let mut arguments = ProbeArguments { words: [0; FIELDS_MAX], texts: [[0; TEXT_MAX + 1]; TEXTS_MAX] };
    let mut texts = arguments.texts.iter_mut();
    for (word, value) in arguments.words.iter_mut().zip(values) {
        *word = match *value {
            FieldValue::Number(number) => number,
            FieldValue::Signed(number) => number.cast_unsigned(),
            FieldValue::Text(text) => {
                let Some(copy) = texts.next() else { continue };
                let kept = &text[..text.len().min(TEXT_MAX)];
                copy[..kept.len()].copy_from_slice(kept);
                copy.as_ptr().expose_provenance() as u64
            }
        };
    }
    fire_with(event, &arguments.words);
    // The texts have to live until now.
    std::hint::black_box(&arguments.texts);
}

/// The description of a field for attached programs: its size, negative if signed, and its offset
/// from the register.
#[cfg(target_arch = "x86_64")]
macro_rules! operands {
    (;$($offset:literal)*) => { "" };
    (error $($field:ident)*; $offset:literal $($offsets:literal)*) => {
        concat!("-8@", $offset, "({arguments}) ", operands!($($field)*; $($offsets)*))
    };
    ($first:ident $($field:ident)*; $offset:literal $($offsets:literal)*) => {
        concat!("8@", $offset, "({arguments}) ", operands!($($field)*; $($offsets)*))
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! operands {
    (;$($offset:literal)*) => { "" };
    (error $($field:ident)*; $offset:literal $($offsets:literal)*) => {
        concat!("-8@[{arguments}, ", $offset, "] ", operands!($($field)*; $($offsets)*))
    };
    ($first:ident $($field:ident)*; $offset:literal $($offsets:literal)*) => {
        concat!("8@[{arguments}, ", $offset, "] ", operands!($($field)*; $($offsets)*))
    };
}

/// One instruction that does nothing, and the note that names it (the layout is that of
/// <sys/sdt.h>, version 3).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! probe_at {
    ($name:literal, $operands:expr, $words:ident, $event:ident, [$($option:ident),*]) => {
        std::arch::asm!(
            "990: nop",
            ".pushsection .note.stapsdt, \"?\", \"note\"",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b",
            ".8byte _.stapsdt.base",
            ".8byte {wanted} + {offset}",
            ".asciz \"curt\"",
            concat!(".asciz \"", $name, "\""),
            concat!(".asciz \"", $operands, "\""),
            "994: .balign 4",
            ".popsection",
            ".ifndef _.stapsdt.base",
            ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat",
            ".weak _.stapsdt.base",
            ".hidden _.stapsdt.base",
            "_.stapsdt.base: .space 1",
            ".size _.stapsdt.base, 1",
            ".popsection",
            ".endif",
            arguments = in(reg) $words.as_ptr(),
            wanted = sym WANTED,
            offset = const Event::$event.index() * size_of::<AtomicU32>(),
            options(readonly, nostack, preserves_flags, $($option),*)
        )
    };
}

macro_rules! fire_each {
    ($($event:ident $name:literal $stability:ident $frequency:ident $span:ident { $($field:ident)* } $meaning:literal;)*) => {
        #[cfg(target_arch = "x86_64")]
        fn fire_with(event: Event, words: &[u64; FIELDS_MAX]) {
            match event {
                // SAFETY: the instruction does nothing; what is named beside it is not loaded into
                // the program, and the register holds the address of words that live until it is
                // passed.
                $(Event::$event => unsafe {
                    probe_at!($name, operands!($($field)*; 0 8 16 24 32 40 48 56 64 72 80 88), words, $event, [att_syntax])
                },)*
            }
        }

        #[cfg(target_arch = "aarch64")]
        fn fire_with(event: Event, words: &[u64; FIELDS_MAX]) {
            match event {
                // SAFETY: as on x86_64.
                $(Event::$event => unsafe {
                    probe_at!($name, operands!($($field)*; 0 8 16 24 32 40 48 56 64 72 80 88), words, $event, [])
                },)*
            }
        }
    };
}

with_events!(fire_each);

/// Other processors have no probes; everything else is the same.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fire_with(_: Event, _: &[u64; FIELDS_MAX]) {}

/// Maps the first `words` words of a file until the process ends, shared with the file, so that
/// written data survive the process.
///
/// # Errors
/// mmap(2)'s.
pub(super) fn map(file: &File, words: usize) -> rustix::io::Result<&'static [AtomicU64]> {
    let bytes = words * size_of::<u64>();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses where; nothing of ours is there.
    let address =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
    // SAFETY: the mapping is as long, aligned to a page, never taken back, and only ever seen as
    // atomic words, which may be changed by others. The file has been given room for all of it; who
    // may cut it off is the owner of this process.
    Ok(unsafe { std::slice::from_raw_parts(address.cast::<AtomicU64>(), words) })
}
