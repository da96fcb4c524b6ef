//! The letterbox: bytes in any split become request heads and bodies; answers become response heads and chunks.
//!
//! Pure: no socket, no file, no clock, and no idea of Git. Law: what could be read in two ways is refused
//! (RFC 9112, 11.2 "Request Smuggling"); every length is bounded before it is believed.
//! Read first: `head_split_at_every_byte_gives_the_same_head`.

pub mod body;
pub mod chunk;
pub mod head;
pub mod response;

pub use self::{
    body::{BodyError, BodyReader},
    head::{Head, HeadError, HeadReader, Length, Method, Version},
    response::{BodyLength, CONTINUE, Cache, Response, Status},
};
