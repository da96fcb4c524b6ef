//! Protocol requests of all versions. Judge: what is not offered is never accepted; a request reads the same twice; a
//! refusal has words without control bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packring::{
    oid::Kind,
    proto::{Command, Offers, old, request},
};

fuzz_target!(|input: (u8, &[u8])| {
    let (switches, body) = input;
    let on = |bit: u8| switches >> bit & 1 == 1;
    let offers = Offers {
        filter: on(0),
        ref_in_want: on(1),
        sideband_all: on(2),
        packfile_uris: on(3),
        object_info: on(4),
        bundle_uri: on(5),
        ..Offers::of(if on(6) { Kind::Sha256 } else { Kind::Sha1 })
    };
    let read = request::parse(body, &offers);
    assert_eq!(read, request::parse(body, &offers));
    match &read {
        Ok(Some(Command::Fetch(fetch))) => {
            assert!(offers.filter || fetch.filter.is_none());
            assert!(offers.ref_in_want || fetch.want_refs.is_empty());
            assert!(offers.sideband_all || !fetch.sideband_all);
            assert!(offers.packfile_uris || fetch.uri_protocols.is_empty());
            assert!(fetch.wants.len() + fetch.haves.len() <= body.len() / 44);
        }
        Ok(Some(Command::ObjectInfo(_))) => assert!(offers.object_info),
        Ok(Some(Command::BundleUri)) => assert!(offers.bundle_uri),
        Ok(_) => {}
        Err(violation) => assert!(!violation.to_string().chars().any(char::is_control)),
    }
    if let Ok(Some(asked)) = old::parse(body, &offers) {
        let known = vec![old::Known::New; asked.steps.len()];
        let talk = old::talk(&asked, &known, Some(1));
        assert!(talk.text.len() <= 80 * (asked.steps.len() + 3));
    }
});
