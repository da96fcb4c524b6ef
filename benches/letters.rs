//! What does it cost to read a request head, and to read and write pkt-lines? Not measured: sockets, objects.
#![allow(missing_docs, reason = "the macros of criterion document nothing")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use packring::{
    http::HeadReader,
    proto::pkt::{self, Pkt, Pkts},
};
use std::hint::black_box;

const HEAD: &[u8] =
    b"POST /mirrors/some/project.git/git-upload-pack HTTP/1.1\r\nHost: git.example.com\r\nUser-Agent: git/2.47.3\r\n\
    Accept-Encoding: deflate, gzip, br, zstd\r\nContent-Type: application/x-git-upload-pack-request\r\n\
    Accept: application/x-git-upload-pack-result\r\nGit-Protocol: version=2\r\nContent-Length: 175\r\n\r\n";

fn heads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("head");
    group.throughput(Throughput::Bytes(HEAD.len() as u64));
    group.bench_function("whole", |bencher| {
        bencher.iter(|| {
            let (used, head) = HeadReader::new().take(black_box(HEAD)).expect("a sound head");
            assert_eq!((used, head.is_some()), (HEAD.len(), true));
        });
    });
    group.bench_function("byte by byte", |bencher| {
        bencher.iter(|| {
            let mut reader = HeadReader::new();
            let last = HEAD.iter().map(|byte| reader.take(&[*byte]).expect("a sound head")).last();
            assert!(last.is_some_and(|last| last.1.is_some()));
        });
    });
    group.finish();
}

fn lines(criterion: &mut Criterion) {
    let mut body = Vec::new();
    for number in 0..1000 {
        pkt::push_line(&mut body, &[b"want ", format!("{number:040x}").as_bytes()]);
    }
    body.extend_from_slice(pkt::FLUSH);
    let mut group = criterion.benchmark_group("pkt-line");
    group.throughput(Throughput::Elements(1001));
    group.bench_function("read 1000 wants", |bencher| {
        bencher.iter(|| {
            let read = Pkts::new(black_box(&body)).filter(|line| matches!(line, Ok(Pkt::Data(_)))).count();
            assert_eq!(read, 1000);
        });
    });
    group.bench_function("write 1000 lines", |bencher| {
        bencher.iter(|| {
            let mut out = Vec::with_capacity(body.len());
            for _ in 0..1000 {
                pkt::push_line(&mut out, &[b"want ", black_box(b"0123456789012345678901234567890123456789")]);
            }
            assert_eq!(out.len() + 4, body.len());
        });
    });
    group.finish();
}

criterion_group!(benches, heads, lines);
criterion_main!(benches);
