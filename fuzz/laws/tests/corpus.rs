//! The properties with any compiler: on the stored inputs, and on random bytes.

use std::path::Path;

use curt_fuzz_laws::LAWS;
use proptest::prelude::*;

/// The directory of the corpora.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus");

#[test]
fn laws_hold_for_the_corpora() {
    for (name, law) in LAWS {
        let directory = Path::new(CORPUS).join(name);
        let files =
            std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a readable file");
            println!("{}", path.display());
            law(&bytes);
            count += 1;
        }
        assert!(count > 0, "{name} has no corpus");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn laws_hold_for_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (_, law) in LAWS {
            law(&bytes);
        }
    }
}
