//! The tables of the documents that proposed to send fewer requests: Curt sends no more than they
//! do.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::time::Duration;

use curt_bench::library::documents::comparisons;
use curt_bench::report::comparison;
use curt_proto::nfs3::NfsProcedure;

#[test]
fn the_documents_tables_are_met() {
    let tables = comparisons(Duration::from_micros(200)).unwrap();
    for table in &tables {
        println!("{}\n{}", table.title, comparison(&table.columns));
    }
    let [five, ten, depend, make] = &tables[..] else { panic!("four tables") };

    // The first document: 2,612 requests before, 1,539 after.
    let [before, after, defaults, options] = &five.columns[..] else { panic!("four columns") };
    assert_eq!((before.rpc.total(), after.rpc.total()), (2612, 1539));
    assert!(defaults.rpc.total() <= before.rpc.total());
    assert_eq!(options.rpc.value(NfsProcedure::Access), 0);
    assert_eq!(options.rpc.value(NfsProcedure::Lookup), 416);
    assert_eq!(options.rpc.value(NfsProcedure::Read), 216);
    assert!(options.rpc.value(NfsProcedure::Getattr) <= 902);
    assert!(options.rpc.total() <= 1539);
    assert_eq!(ten.columns[1].rpc.value(NfsProcedure::Access), 0);

    // The second: LOOKUPs below an 11th, and below a fourth while files are created.
    for (table, factor) in [(depend, 11), (make, 4)] {
        let [_, _, without, with, disturbed] = &table.columns[..] else { panic!("five columns") };
        let lookups = |column: &curt_bench::report::ComparisonColumn| column.rpc.value(NfsProcedure::Lookup);
        assert!(lookups(without) >= factor * lookups(with), "{}", table.title);
        assert!(lookups(disturbed) < lookups(without) / 2, "{}", table.title);
        // Without negative dentries the synthetic builds send as many requests as the document's.
        assert_eq!(lookups(without), lookups(&table.columns[0]), "{}", table.title);
        // No other request is sent more often.
        for procedure in [NfsProcedure::Read, NfsProcedure::Write, NfsProcedure::Access, NfsProcedure::Create]
        {
            assert_eq!(without.rpc.value(procedure), with.rpc.value(procedure), "{procedure}");
        }
    }
}
