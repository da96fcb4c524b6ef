//! The workshop: mapped bytes become a selection of objects, the selection becomes a plan.
//!
//! Reads bytes it was handed and nothing else: no file is opened here, no HTTP or pkt-line is known, no clock is read.
//! What a slice of work is, and how a loose object is asked for, is said in [`pace`]. Law: nothing read from a mapping is
//! trusted before it was bounded; nothing is sent that the selection does not hold.
//! Read first: `planned_packs_hold_exactly_the_selection`.

pub mod bitmap;
pub mod chart;
pub mod checksum;
pub mod closure;
pub mod deflate;
pub mod delta;
pub mod depth;
pub mod entry;
pub mod ewah;
pub mod fault;
pub mod filter;
pub mod graph;
pub mod line;
pub mod map;
pub mod marks;
pub mod midx;
pub mod objects;
pub mod order;
pub mod pace;
pub mod packfile;
pub mod plan;
pub mod reach;
pub mod reader;
pub mod seal;
pub mod shelf;
pub mod sparse;
pub mod store;
pub mod tree;
pub mod walk;
pub mod ways;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use self::{
    bitmap::{BitmapError, Bitmaps},
    chart::{Chart, ChartError},
    checksum::Checksum,
    entry::ObjectType,
    fault::Fault,
    filter::Omit,
    graph::CommitGraph,
    map::Mapping,
    midx::{Midx, MidxError},
    objects::Objects,
    order::OrderError,
    pace::{Ask, Loose, Pace},
    packfile::{Pack, PackError},
    plan::{Dialect, Plan, plan},
    reader::Reader,
    seal::Seal,
    sparse::Sparse,
    store::Store,
    walk::{Question, Selection, select},
    ways::{Way, select_by_bitmap},
};
