//! What a repository offers, from its settings: advertised and accepted from this one value.
//!
//! Read first: `tests/differential.rs`.

use super::call::Call;
use crate::{
    proto::{self, Offers},
    repo::{self, Snapshot},
};

/// The offers of one repository to one caller.
pub fn offers(snapshot: &Snapshot, call: &Call<'_>) -> Offers {
    let rules = call.rules;
    let settings = &snapshot.settings;
    Offers {
        kind: snapshot.kind,
        agent: rules.agent.clone(),
        unborn: match settings.unborn {
            repo::Unborn::Advertise => proto::Unborn::Advertise,
            repo::Unborn::Allow => proto::Unborn::Allow,
            repo::Unborn::Ignore => proto::Unborn::Ignore,
        },
        filter: settings.allow_filter,
        ref_in_want: settings.ref_in_want,
        sideband_all: settings.sideband_all,
        packfile_uris: !settings.blob_packfile_uris.is_empty(),
        object_info: settings.object_info,
        bundle_uri: settings.advertise_bundle_uris,
        // A hidden tip is nothing that visible refs reach.
        allow_tip: (settings.allow_tip || settings.allow_any) && !call.pass.reachable,
        allow_reachable: settings.allow_reachable || settings.allow_any,
        session_id: settings.advertise_sid.then(|| rules.session_id.clone()),
        filters: proto::FilterPolicy {
            others: settings.filters.others,
            named: settings.filters.named.clone(),
            tree_depth_max: settings.filters.tree_depth_max,
        },
    }
}
