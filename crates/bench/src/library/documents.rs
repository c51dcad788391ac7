//! The tables of the two documents that proposed to send fewer NFS requests, compared with Curt.
//!
//! Two synthetic workloads with the documents' numbers of names, files and misses are performed
//! through the library with a scripted clock. The first (2013, options `noaccesscheck` and
//! `sloppycto`): five views of a page of a web application. The second (2006, negative dentries):
//! `make depend` and `make` of a kernel, reduced to look-ups and opens.

use std::io::BufReader;
use std::time::Duration;

use curt_client::{Caller, ClientOptions};
use curt_observe::CallCounts;
use curt_policy::{AccessMode, CacheOptions, FillMode, MountUsers};
use curt_proto::nfs3::NfsProcedure;
use curt_server::{ExportRules, Squash};
use curt_vfs::MemoryOptions;
use rustix::io::Errno;

use super::{FollowLinks, InProcessMount, InProcessServer, InProcessServerError, SimulatedKernel};
use crate::report::ComparisonColumn;
use crate::tree::WorkloadTree;

/// Time between two operations of a program.
const OPERATION: Duration = Duration::from_micros(20);

/// A table: the document's numbers and Curt's for the same workload.
#[derive(Debug)]
pub struct DocumentTable {
    /// The workload.
    pub title: String,
    /// The document's columns and Curt's.
    pub columns: Vec<ComparisonColumn>,
}

/// Why a table cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The server or the mount cannot be created.
    #[error(transparent)]
    World(#[from] InProcessServerError),
    /// An operation failed.
    #[error("an operation of the workload failed: {0}")]
    Operation(#[from] Errno),
}

/// All tables, with a round-trip time of `request`.
///
/// # Errors
/// [`DocumentError`].
pub fn comparisons(request: Duration) -> Result<Vec<DocumentTable>, DocumentError> {
    Ok(vec![
        page_views("five views of a page", &[0, 1300, 1900, 2400, 2800], request)?,
        page_views(
            "ten views of it, 1 s apart",
            &[0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000],
            request,
        )?,
        header_search(&DEPEND, request)?,
        header_search(&MAKE, request)?,
    ])
}

/// The options that the documents proposed, without later ones.
fn default() -> CacheOptions {
    CacheOptions { users: MountUsers::Many, fill: FillMode::Off, ..CacheOptions::default() }
}

fn noaccesscheck_sloppycto() -> CacheOptions {
    CacheOptions { access: AccessMode::ModeBits, sloppy_open: Duration::from_secs(3), ..default() }
}

fn nonegnamecache() -> CacheOptions {
    CacheOptions { missing_name_lifetime: Duration::ZERO, ..default() }
}

fn printed(title: &str, calls: &[(NfsProcedure, u64)], pages: &[f64]) -> ComparisonColumn {
    let rpc = calls.iter().copied().collect();
    ComparisonColumn { title: title.to_owned(), rpc, pages: pages.to_vec() }
}

fn sent(title: &str, requests: CallCounts, pages: Vec<f64>) -> ComparisonColumn {
    ComparisonColumn { title: title.to_owned(), rpc: requests, pages }
}

fn mount(
    world: &InProcessServer,
    cache: CacheOptions,
    request: Duration,
) -> Result<InProcessMount, InProcessServerError> {
    let mounted = world.mount(&ClientOptions { cache, ..ClientOptions::default() }, request, None)?;
    world.clock().advance(Duration::from_secs(1));
    Ok(mounted)
}

const SITE_DIRECTORIES: usize = 38;
const SITE_FILES: usize = 216;
const SITE_LISTED: usize = 2;
const SITE_LINKS: usize = 3;
/// The number of missing names among the document's 416 names.
const SITE_MISSING: usize = 416 - SITE_DIRECTORIES - SITE_FILES - SITE_LISTED - SITE_LINKS;

/// The 2013 document's page: 416 names, of which 216 are files that are read, each with a stat
/// before its open.
fn page_views(title: &str, views: &[u64], request: Duration) -> Result<DocumentTable, DocumentError> {
    let mut columns = Vec::new();
    if views.len() == 5 {
        let common = [
            (NfsProcedure::Lookup, 416),
            (NfsProcedure::Readlink, 3),
            (NfsProcedure::Read, 216),
            (NfsProcedure::ReaddirPlus, 2),
        ];
        let before = [&common[..], &[(NfsProcedure::Getattr, 1308), (NfsProcedure::Access, 667)]].concat();
        let after = [&common[..], &[(NfsProcedure::Getattr, 902)]].concat();
        columns.push(printed("document, before", &before, &[1.287, 0.550, 0.453, 0.343, 0.379]));
        columns.push(printed("document, after", &after, &[0.787, 0.376, 0.385, 0.324, 0.338]));
    }
    let tree = site();
    for (title, cache) in
        [("Curt, defaults", default()), ("Curt, noaccesscheck,sloppycto=3", noaccesscheck_sloppycto())]
    {
        let world = InProcessServer::new(&tree)?;
        let mounted = mount(&world, cache, request)?;
        let before = mounted.requests();
        let caller = Caller::new(1000, 1000, &[]);
        let mut kernel = SimulatedKernel::new(&mounted.client, &caller, &**world.clock());
        let start = world.clock().passed();
        let mut seconds = Vec::new();
        for view in views {
            world.clock().advance_to(start + Duration::from_millis(*view));
            let began = world.clock().passed();
            view_page(&mut kernel, &world)?;
            seconds.push((world.clock().passed() - began).as_secs_f64());
        }
        columns.push(sent(title, mounted.requests().since(&before), seconds));
    }
    Ok(DocumentTable { title: title.to_owned(), columns })
}

fn site() -> WorkloadTree {
    let mut lines = String::new();
    for file in 0..SITE_FILES {
        lines += &format!("f 3000 d{}/f{file}\n", file % SITE_DIRECTORIES);
    }
    for listed in 0..SITE_LISTED {
        (0..10).for_each(|name| lines += &format!("f 10 l{listed}/n{name}\n"));
    }
    (0..SITE_LINKS).for_each(|link| lines += &format!("l d{link} link{link}\n"));
    WorkloadTree::parse(BufReader::new(lines.as_bytes())).expect("made by the lines above")
}

fn view_page(kernel: &mut SimulatedKernel<'_>, world: &InProcessServer) -> Result<(), Errno> {
    let pause = || world.clock().advance(OPERATION);
    for listed in 0..SITE_LISTED {
        pause();
        let directory = kernel.open_directory(format!("l{listed}").as_bytes())?;
        kernel.list(&directory)?;
    }
    for link in 0..SITE_LINKS {
        pause();
        kernel.stat(format!("link{link}/f{link}").as_bytes(), FollowLinks::Follow)?;
    }
    for missing in 0..SITE_MISSING {
        pause();
        expect_missing(kernel, &format!("d{}/m{missing}", missing % SITE_DIRECTORIES))?;
    }
    for file in 0..SITE_FILES {
        let path = format!("d{}/f{file}", file % SITE_DIRECTORIES);
        pause();
        kernel.stat(path.as_bytes(), FollowLinks::Follow)?;
        pause();
        read_whole(kernel, &path, 3000)?;
    }
    Ok(())
}

/// A search for headers along a path of directories, as by a compiler.
struct HeaderSearch {
    title: &'static str,
    /// Number of compilations.
    sources: usize,
    /// Number of headers that each includes, out of all headers.
    included: usize,
    headers: usize,
    /// Number of names that each compilation misses, out of all missing names.
    missed: usize,
    missing: usize,
    /// Each compilation creates a file in a directory of the path.
    makes: bool,
    before: &'static [(NfsProcedure, u64)],
    after: &'static [(NfsProcedure, u64)],
}

/// Number of directories in the search path.
const SEARCH_PATH: usize = 3;

const DEPEND: HeaderSearch = HeaderSearch {
    title: "make depend of a kernel (names and opens)",
    sources: 200,
    included: 107,
    headers: 1000,
    missed: 65,
    missing: 65,
    makes: false,
    before: &[
        (NfsProcedure::Lookup, 14_203),
        (NfsProcedure::Read, 548),
        (NfsProcedure::Access, 21_561),
        (NfsProcedure::Getattr, 454),
    ],
    after: &[
        (NfsProcedure::Lookup, 1_268),
        (NfsProcedure::Read, 548),
        (NfsProcedure::Access, 21_575),
        (NfsProcedure::Getattr, 454),
    ],
};

const MAKE: HeaderSearch = HeaderSearch {
    title: "make of a kernel (names, opens and created files)",
    sources: 442,
    included: 54,
    headers: 976,
    missed: 40,
    missing: 103,
    makes: true,
    before: &[
        (NfsProcedure::Lookup, 19_543),
        (NfsProcedure::Read, 2_410),
        (NfsProcedure::Write, 5_353),
        (NfsProcedure::Create, 442),
        (NfsProcedure::Access, 24_241),
    ],
    after: &[
        (NfsProcedure::Lookup, 4_122),
        (NfsProcedure::Read, 2_410),
        (NfsProcedure::Write, 5_353),
        (NfsProcedure::Create, 442),
        (NfsProcedure::Access, 24_222),
    ],
};

/// The 2006 document's builds: `opens × misses` along an include path, without and with negative
/// dentries.
fn header_search(search: &HeaderSearch, request: Duration) -> Result<DocumentTable, DocumentError> {
    let mut columns =
        vec![printed("document, before", search.before, &[]), printed("document, after", search.after, &[])];
    let mut lines = String::new();
    (0..search.headers).for_each(|header| lines += &format!("f 2000 i{}/h{header}\n", header % SEARCH_PATH));
    (0..search.sources).for_each(|source| lines += &format!("f 4000 s{source}\n"));
    let tree = WorkloadTree::parse(BufReader::new(lines.as_bytes())).expect("made by the lines above");
    for (title, cache, strangers) in [
        ("Curt, nonegnamecache", nonegnamecache(), false),
        ("Curt, defaults", default(), false),
        ("and another client makes a file a second", default(), true),
    ] {
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        let world = InProcessServer::with_rules(&tree, rules, MemoryOptions::default())?;
        let mounted = mount(&world, cache, request)?;
        let before = mounted.requests();
        let other = mount(&world, default(), Duration::ZERO)?;
        let caller = Caller::new(0, 0, &[]);
        let clock = &**world.clock();
        let mut kernel = SimulatedKernel::new(&mounted.client, &caller, clock);
        let mut stranger = SimulatedKernel::new(&other.client, &caller, clock);
        let mut next = world.clock().passed();
        for source in 0..search.sources {
            compile(&mut kernel, &world, search, source)?;
            if strangers && world.clock().passed() >= next {
                stranger.create(format!("i{}/stranger{source}", source % SEARCH_PATH).as_bytes(), b"x")?;
                next += Duration::from_secs(1);
            }
        }
        columns.push(sent(title, mounted.requests().since(&before), Vec::new()));
    }
    Ok(DocumentTable { title: search.title.to_owned(), columns })
}

fn compile(
    kernel: &mut SimulatedKernel<'_>,
    world: &InProcessServer,
    search: &HeaderSearch,
    source: usize,
) -> Result<(), Errno> {
    let pause = || world.clock().advance(OPERATION);
    pause();
    read_whole(kernel, &format!("s{source}"), 4000)?;
    for miss in 0..search.missed {
        let missing = (source * search.missed + miss) % search.missing;
        pause();
        expect_missing(kernel, &format!("i{}/m{missing}", missing % SEARCH_PATH))?;
    }
    for include in 0..search.included {
        let header = (source * search.included + include) % search.headers;
        pause();
        read_whole(kernel, &format!("i{}/h{header}", header % SEARCH_PATH), 2000)?;
    }
    if search.makes {
        pause();
        kernel.create(format!("i0/o{source}").as_bytes(), &[7; 12_000])?;
    }
    Ok(())
}

fn expect_missing(kernel: &mut SimulatedKernel<'_>, path: &str) -> Result<(), Errno> {
    match kernel.stat(path.as_bytes(), FollowLinks::Follow) {
        Err(Errno::NOENT) => Ok(()),
        Ok(_) => Err(Errno::EXIST),
        Err(error) => Err(error),
    }
}

fn read_whole(kernel: &mut SimulatedKernel<'_>, path: &str, size: usize) -> Result<(), Errno> {
    let mut file = kernel.open(path.as_bytes())?;
    let bytes = kernel.read(&mut file, size)?;
    kernel.close(&file);
    if bytes.len() == size { Ok(()) } else { Err(Errno::IO) }
}
