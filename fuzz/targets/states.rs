//! Passes libFuzzer's inputs to [`curt_fuzz_laws::states`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| curt_fuzz_laws::states(bytes));
