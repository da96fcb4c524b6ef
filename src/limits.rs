//! Every bound of the server, with its default and its reason.
//!
//! What becomes what: a number a stranger (peer, disk) may claim becomes a number we are willing to believe. Nothing
//! here reads or checks anything; the room that enforces a bound names it in its error. Bounds that depend on each other
//! are asserted at compile time at the end of this file.

/// Bytes of one HTTP request head (request line and fields). Stock clients send under 1 KiB; a token may add 4 KiB.
pub const HEAD_SIZE_MAX: usize = 16 * 1024;

/// Header fields of one request. Proxies add about a dozen to the dozen of a client.
pub const HEAD_FIELDS_MAX: usize = 96;

/// Bytes of a request body as sent. A fetch with 50 000 haves is 2.5 MB before gzip; v0 wants of 100 000 refs are 5 MB.
pub const BODY_SENT_MAX: u64 = 32 * 1024 * 1024;

/// Bytes of a request body after `Content-Encoding: gzip` is undone: a bomb of 32 KiB inflates to 32 MiB.
pub const BODY_INFLATED_MAX: usize = 32 * 1024 * 1024;

/// Bytes of one chunk-size line of a chunked request body, extensions included.
pub const CHUNK_LINE_MAX: usize = 256;

/// Bytes of one pkt-line, its four digits included: gitprotocol-common(5) sets 65520.
pub const PKT_SIZE_MAX: usize = 65520;

/// `ref-prefix` arguments that are looked at; stock git ignores all of them when there are more.
pub const REF_PREFIXES_MAX: usize = 65_536;

/// Bytes of one write to a socket: one frame. Large enough that a write costs little per byte, small enough that a slow
/// client pins little.
pub const WINDOW_DEFAULT: usize = 256 * 1024;

/// Smallest window: below it, framing outweighs payload.
pub const WINDOW_MIN: usize = 4 * 1024;

/// Largest window: one SQE must stay far under the kernel's 2 GiB, and a slow client must stay cheap.
pub const WINDOW_MAX: usize = 16 * 1024 * 1024;

/// Slices of one frame: the kernel takes at most 1024 (`UIO_MAXIOV`) in one write.
pub const FRAME_SLICES_MAX: usize = 1000;

/// Bytes of an object that is inflated or deflated in one go on a loop. Larger ones are streamed in slices.
pub const OBJECT_INLINE_MAX: u64 = 1024 * 1024;

/// Bytes of an object that has to be held whole to apply a delta to it or to parse it.
pub const OBJECT_SIZE_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Deltas between an entry and its whole base. git writes at most 4095 (`pack.depth`), 50 by default.
pub const DELTA_DEPTH_MAX: usize = 10_000;

/// How far deflate can blow up: 1032 bytes out of one byte in (RFC 1951), so a larger claim is a lie.
pub const INFLATE_RATIO_MAX: u64 = 1032;

/// Bytes of delta bases one walk remembers.
pub const BASE_CACHE_SIZE: usize = 16 * 1024 * 1024;

/// Folders below the root that discovery descends into, and symbolic refs that are followed.
pub const REPOSITORY_DEPTH_MAX: usize = 32;

/// Symbolic refs followed from one name (git: 5).
pub const SYMREF_DEPTH_MAX: usize = 5;

/// Alternates of alternates that are followed (git: 5).
pub const ALTERNATE_DEPTH_MAX: usize = 5;

/// Tags of tags that are followed from one name. git writes such chains only on request; a circle has no id.
pub const TAG_DEPTH_MAX: usize = 1000;

/// Bytes of a ref file or of `HEAD`, `shallow`, `info/alternates`, `config`.
pub const SMALL_FILE_MAX: u64 = 16 * 1024 * 1024;

/// Bytes of a commit-graph: about 60 for each commit.
pub const GRAPH_SIZE_MAX: usize = 1 << 30;

/// Bytes of the names of all refs of one repository. A million refs take about 50 MiB; a reftable compresses names so well
/// that a small file could claim far more.
pub const REF_NAMES_SIZE_MAX: usize = 256 * 1024 * 1024;

/// Bytes of one ref's name. Files bound it by the length of a path (4096); reftables do not.
pub const REF_NAME_MAX: usize = 4096;

/// Folders of refs that are entered by way of symbolic links, which may lead in circles.
pub const REF_LINKS_MAX: usize = 1000;

/// Object folders one repository borrows from, itself included.
pub const OBJECT_FOLDERS_MAX: usize = 1000;

/// Snapshots of repositories that are remembered. An idle one holds its refs (about 100 bytes each) and its mappings.
pub const SNAPSHOTS_MAX: usize = 10_000;

/// Snapshots narrowed for principals who may see only some refs. Each holds a list of refs of its own.
pub const NARROWED_MAX: usize = 256;

/// Mappings held by remembered snapshots: half of what `vm.max_map_count` allows by default (65 530).
pub const MAPPINGS_MAX: usize = 32_000;

/// How far back a stored bitmap may lie that another is an exclusive-or against: gitformat-bitmap(5) sets 160.
pub const BITMAP_XOR_MAX: u32 = 160;

/// Bytes of resolved bitmaps one selection remembers. A repository of 230 000 objects needs 29 KB for each.
pub const BITMAPS_HELD_MAX: usize = 16 * 1024 * 1024;

/// Commits newer than a client's haves that are walked although there are bitmaps. Twenty commits of tokio-rs/tokio take
/// 0.5 ms by walk and 3 ms by bitmap, since the haves are 126 commits away from theirs.
pub const FEW_COMMITS: u32 = 200;

/// Commits and tags a seal names: 4 MB of ids. A pack with more tips is not worth a seal.
pub const SEAL_TIPS_MAX: usize = 100_000;

/// Bytes of a seal's file: so many lines with ids of 64 digits.
pub const SEAL_SIZE_MAX: u64 = 16 * 1024 * 1024;

/// Commits walked from haves to the nearest stored bitmap before a plain walk is taken to be cheaper.
pub const HAVES_WALKED_MAX: u32 = 200;

const _: () = assert!(WINDOW_MIN <= WINDOW_DEFAULT && WINDOW_DEFAULT <= WINDOW_MAX);
const _: () = assert!(OBJECT_INLINE_MAX <= OBJECT_SIZE_MAX);
