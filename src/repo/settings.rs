//! Settings: the configuration of one repository, over the server's own file, over the defaults the operator chose.
//!
//! Follows no include and executes nothing: keys that name programs are not even looked at. Invariant: what a repository
//! says wins over the server's file, which wins over the defaults.
//! Source: git-config(1), "uploadpack", "uploadpackfilter", "transfer", "lsrefs", "http", "bundle", "extensions".
//! Read first: `a_repository_wins_over_the_server_and_both_over_the_defaults`.

use std::time::Duration;

use super::{Absent, hide::Hidden};
use crate::oid::{Kind, ObjectId, from_hex};

/// What is offered where no configuration says anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defaults {
    /// What a mirror wants: partial clone, fetch by id and by name, sizes.
    #[default]
    Mirror,
    /// Exactly what stock git offers.
    Git,
}

/// How `ls-refs` treats a HEAD without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unborn {
    /// Offered and told.
    Advertise,
    /// Told to who asks.
    Allow,
    /// Not told.
    Ignore,
}

/// Which filters are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterPolicy {
    /// Those that are not named.
    pub others: bool,
    /// Those that are, in the order of the configuration.
    pub named: Vec<(String, bool)>,
    /// Deepest tree filter.
    pub tree_depth_max: u64,
}

/// A blob that can be fetched elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobPackfileUri {
    /// The blob.
    pub object: ObjectId,
    /// Checksum of the pack that holds it, in hexadecimal.
    pub pack: String,
    /// Where that pack is.
    pub uri: String,
}

/// What a repository's configuration comes to.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of git's configuration")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `http.uploadpack`
    pub upload_pack: bool,
    /// `http.getanyfile`
    pub getanyfile: bool,
    /// `uploadpack.allowAnySHA1InWant`
    pub allow_any: bool,
    /// `uploadpack.allowTipSHA1InWant`
    pub allow_tip: bool,
    /// `uploadpack.allowReachableSHA1InWant`
    pub allow_reachable: bool,
    /// `uploadpack.allowFilter`
    pub allow_filter: bool,
    /// `uploadpackfilter.*`
    pub filters: FilterPolicy,
    /// `uploadpack.allowRefInWant`
    pub ref_in_want: bool,
    /// `uploadpack.allowSidebandAll`
    pub sideband_all: bool,
    /// `transfer.advertiseObjectInfo`
    pub object_info: bool,
    /// `uploadpack.advertiseBundleURIs`
    pub advertise_bundle_uris: bool,
    /// `transfer.advertiseSID`
    pub advertise_sid: bool,
    /// `lsrefs.unborn`
    pub unborn: Unborn,
    /// `uploadpack.keepAlive`; nothing switches it off.
    pub keep_alive: Option<Duration>,
    /// `bundle.*`, in order.
    pub bundle: Vec<(String, String)>,
    /// `uploadpack.blobPackfileUri`
    pub blob_packfile_uris: Vec<BlobPackfileUri>,
    /// `transfer.hideRefs`, `uploadpack.hideRefs`
    pub hidden: Hidden,
    /// `extensions.objectFormat`
    pub kind: Kind,
    /// `extensions.refStorage`
    pub reftable: bool,
    /// `extensions.worktreeConfig`: `config.worktree` in the git folder is read as well.
    pub worktree_config: bool,
}

impl Settings {
    /// What is served without any configuration.
    pub fn new(defaults: Defaults) -> Self {
        let mirror = defaults == Defaults::Mirror;
        Self {
            upload_pack: true,
            // Stock serves any file of the repository by default; a mirror that speaks smart HTTP has no reason to.
            getanyfile: !mirror,
            allow_any: mirror,
            allow_tip: mirror,
            allow_reachable: mirror,
            allow_filter: mirror,
            // A sparse filter has us match every path of every commit for each request: not without being asked to.
            filters: FilterPolicy {
                others: true,
                named: if mirror { vec![("sparse:oid".to_owned(), false)] } else { Vec::new() },
                tree_depth_max: u64::MAX,
            },
            ref_in_want: mirror,
            sideband_all: false,
            object_info: mirror,
            advertise_bundle_uris: false,
            advertise_sid: false,
            unborn: Unborn::Advertise,
            keep_alive: Some(Duration::from_secs(5)),
            bundle: Vec::new(),
            blob_packfile_uris: Vec::new(),
            hidden: Hidden::default(),
            kind: Kind::Sha1,
            reftable: false,
            worktree_config: false,
        }
    }

    /// Reads the server's own file, then the repository's.
    ///
    /// # Errors
    /// A file cannot be parsed, or the repository needs an extension this server does not know.
    pub fn read(defaults: Defaults, server: Option<&[u8]>, repository: &[u8]) -> Result<Self, Absent> {
        let mut settings = Self::new(defaults);
        if let Some(server) = server {
            for value in &values(server, "the server's configuration")? {
                settings.apply(value)?;
            }
        }
        let own = values(repository, "the repository's configuration")?;
        let mut format = Format::default();
        for value in &own {
            settings.apply(value)?;
            format.apply(value)?;
        }
        format.check()?;
        (settings.kind, settings.reftable) = (format.kind, format.reftable);
        settings.worktree_config = format.worktree_config;
        settings.drop_foreign_uris();
        Ok(settings)
    }

    /// Adds what `config.worktree` says, which wins over everything else but has no say in the format.
    ///
    /// # Errors
    /// It cannot be parsed.
    pub fn with_worktree(mut self, text: &[u8]) -> Result<Self, Absent> {
        for value in &values(text, "config.worktree")? {
            self.apply(value)?;
        }
        self.drop_foreign_uris();
        Ok(self)
    }

    /// Stock lists blobs elsewhere only by ids of the repository's own kind.
    fn drop_foreign_uris(&mut self) {
        let kind = self.kind;
        self.blob_packfile_uris.retain(|known| known.object.kind() == kind);
    }

    fn apply(&mut self, value: &Value) -> Result<(), Absent> {
        let key = (value.section.as_str(), value.subsection.as_deref(), value.key.as_str());
        let switch = match key {
            ("http", None, "uploadpack") => &mut self.upload_pack,
            ("http", None, "getanyfile") => &mut self.getanyfile,
            ("uploadpack", None, "allowfilter") => &mut self.allow_filter,
            ("uploadpack", None, "allowrefinwant") => &mut self.ref_in_want,
            ("uploadpack", None, "allowsidebandall") => &mut self.sideband_all,
            ("uploadpack", None, "advertisebundleuris") => &mut self.advertise_bundle_uris,
            ("uploadpack", None, "allowtipsha1inwant") => &mut self.allow_tip,
            ("uploadpack", None, "allowreachablesha1inwant") => &mut self.allow_reachable,
            ("transfer", None, "advertiseobjectinfo") => &mut self.object_info,
            ("transfer", None, "advertisesid") => &mut self.advertise_sid,
            ("uploadpack", None, "allowanysha1inwant") => {
                // Any is tip, reachable and more: taking it away takes them away.
                let any = value.boolean()?;
                (self.allow_any, self.allow_tip, self.allow_reachable) = (any, any, any);
                return Ok(());
            }
            _ => return self.apply_other(key, value),
        };
        *switch = value.boolean()?;
        if matches!(key.2, "allowtipsha1inwant" | "allowreachablesha1inwant") && !value.boolean()? {
            self.allow_any = false;
        }
        Ok(())
    }

    fn apply_other(&mut self, key: (&str, Option<&str>, &str), value: &Value) -> Result<(), Absent> {
        match key {
            ("uploadpack", None, "keepalive") => {
                let seconds = value.number()?;
                self.keep_alive = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
            }
            ("lsrefs", None, "unborn") => {
                self.unborn = match value.text() {
                    b"advertise" => Unborn::Advertise,
                    b"allow" => Unborn::Allow,
                    b"ignore" => Unborn::Ignore,
                    _ => return Err(value.wrong("advertise, allow or ignore")),
                };
            }
            ("transfer" | "uploadpack", None, "hiderefs") => self.hidden.push(value.text()),
            ("uploadpackfilter", None, "allow") => self.filters.others = value.boolean()?,
            ("uploadpackfilter", Some(kind), "allow") => self.filters.named.push((kind.to_owned(), value.boolean()?)),
            ("uploadpackfilter", Some("tree"), "maxdepth") => {
                self.filters.named.push(("tree".to_owned(), true));
                self.filters.tree_depth_max = u64::try_from(value.number()?).map_err(|_| value.wrong("a number"))?;
            }
            ("uploadpack", None, "blobpackfileuri") => self.blob_packfile_uris.extend(blob_packfile_uri(value.text())),
            ("bundle", subsection, key) => {
                let name = match subsection {
                    Some(subsection) => format!("bundle.{subsection}.{key}"),
                    None => format!("bundle.{key}"),
                };
                self.bundle.push((name, String::from_utf8_lossy(value.text()).into_owned()));
            }
            _ => {}
        }
        Ok(())
    }
}

/// `<object> <pack> <uri>`
fn blob_packfile_uri(text: &[u8]) -> Option<BlobPackfileUri> {
    let text = std::str::from_utf8(text).ok()?;
    let (object, rest) = text.split_once(' ')?;
    let (pack, uri) = rest.split_once(' ')?;
    let kind = if object.len() == 64 { Kind::Sha256 } else { Kind::Sha1 };
    Some(BlobPackfileUri { object: from_hex(kind, object.as_bytes())?, pack: pack.to_owned(), uri: uri.to_owned() })
}

/// What a repository's format demands of its readers.
struct Format {
    number: i64,
    kind: Kind,
    reftable: bool,
    worktree_config: bool,
    /// Extensions that only version 1 has, and those nobody here knows.
    later: Vec<String>,
    unknown: Vec<String>,
}

impl Default for Format {
    fn default() -> Self {
        let (later, unknown) = (Vec::new(), Vec::new());
        Self { number: 0, kind: Kind::Sha1, reftable: false, worktree_config: false, later, unknown }
    }
}

impl Format {
    fn apply(&mut self, value: &Value) -> Result<(), Absent> {
        match (value.section.as_str(), value.key.as_str()) {
            ("core", "repositoryformatversion") => self.number = value.number()?,
            ("extensions", "worktreeconfig") => self.worktree_config = value.boolean()?,
            ("extensions", "noop" | "preciousobjects" | "partialclone") => {}
            ("extensions", "noop-v1" | "compatobjectformat" | "relativeworktrees") => {
                self.later.push(value.key.clone());
            }
            ("extensions", "objectformat") => {
                self.later.push(value.key.clone());
                self.kind = match value.text() {
                    b"sha1" => Kind::Sha1,
                    b"sha256" => Kind::Sha256,
                    _ => return Err(Absent::Unsupported("extensions.objectFormat names an unknown hash".to_owned())),
                };
            }
            ("extensions", "refstorage") => {
                self.later.push(value.key.clone());
                self.reftable = match value.text() {
                    b"files" => false,
                    b"reftable" => true,
                    _ => return Err(Absent::Unsupported("extensions.refStorage names an unknown format".to_owned())),
                };
            }
            ("extensions", key) => self.unknown.push(key.to_owned()),
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Absent> {
        let refuse = |text: String| Err(Absent::Unsupported(text));
        if !(0..=1).contains(&self.number) {
            return refuse(format!("core.repositoryFormatVersion {} is newer than this server", self.number));
        }
        match (self.number, self.later.first(), self.unknown.first()) {
            (0, Some(key), _) => refuse(format!("extensions.{key} needs core.repositoryFormatVersion 1")),
            (1, _, Some(key)) => refuse(format!("extensions.{key} is not known to this server")),
            _ => Ok(()),
        }
    }
}

/// One line of a configuration.
#[derive(Debug)]
struct Value {
    section: String,
    subsection: Option<String>,
    key: String,
    /// Nothing when the line has no `=`.
    value: Option<Vec<u8>>,
}

impl Value {
    fn text(&self) -> &[u8] {
        self.value.as_deref().unwrap_or_default()
    }

    fn boolean(&self) -> Result<bool, Absent> {
        let Some(text) = &self.value else { return Ok(true) };
        match text.to_ascii_lowercase().as_slice() {
            b"true" | b"yes" | b"on" => Ok(true),
            b"" | b"false" | b"no" | b"off" => Ok(false),
            _ => self.number().map(|number| number != 0).map_err(|_| self.wrong("true or false")),
        }
    }

    /// As `strtoimax` with base 0 reads it, with git's units behind it.
    fn number(&self) -> Result<i64, Absent> {
        let text = std::str::from_utf8(self.text()).unwrap_or_default().trim_ascii_start();
        let (text, factor) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
            Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
            Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
            _ => (text, 1),
        };
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
            None => (digits, 10),
        };
        let number = i64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with(['-', '+']));
        number.and_then(|number| number.checked_mul(sign * factor)).ok_or_else(|| self.wrong("a number"))
    }

    fn wrong(&self, expected: &str) -> Absent {
        let subsection = self.subsection.as_ref().map(|name| format!(".{name}")).unwrap_or_default();
        Absent::Broken(format!(
            "the configuration says nonsense for {}{subsection}.{}: it should be {expected}",
            self.section, self.key
        ))
    }
}

/// All lines in order. gix-config parses; its own accessors lose the order between sections, which hideRefs needs.
fn values(text: &[u8], whose: &str) -> Result<Vec<Value>, Absent> {
    let meta = gix_config::file::Metadata::api();
    let file = gix_config::File::from_bytes_no_includes(text, meta, gix_config::file::init::Options::default())
        .map_err(|_| Absent::Broken(format!("{whose} cannot be parsed; `git config --list` shows where")))?;
    let mut values = Vec::new();
    for section in file.sections() {
        let header = section.header();
        let name = header.name().to_string().to_ascii_lowercase();
        // The old spelling `[section.SUBsection]` does not tell cases apart.
        let lower = |name: String| if header.is_legacy() { name.to_ascii_lowercase() } else { name };
        let subsection = header.subsection_name().map(|name| lower(name.to_string()));
        for (key, value) in section.body() {
            let implicit = value.is_empty() && section.value_implicit(&key) == Some(None);
            let value = (!implicit).then(|| value.to_vec());
            let key = key.to_ascii_lowercase();
            values.push(Value { section: name.clone(), subsection: subsection.clone(), key, value });
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(defaults: Defaults, text: &str) -> Result<Settings, Absent> {
        Settings::read(defaults, None, text.as_bytes())
    }

    #[test]
    fn a_repository_wins_over_the_server_and_both_over_the_defaults() {
        let server = b"[uploadpack]\n allowFilter = false\n keepAlive = 7\n[http]\n getanyfile = true\n";
        let own = b"[uploadpack]\n\tallowFilter\n[lsrefs]\n unborn = ignore\n";
        let settings = Settings::read(Defaults::Mirror, Some(server), own).unwrap();
        assert!(settings.allow_filter && settings.getanyfile && settings.object_info);
        assert_eq!((settings.keep_alive, settings.unborn), (Some(Duration::from_secs(7)), Unborn::Ignore));
        let stock = Settings::new(Defaults::Git);
        assert!(
            !stock.allow_filter && !stock.allow_any && !stock.ref_in_want && !stock.object_info && stock.getanyfile
        );
    }

    #[test]
    fn allowing_any_want_gives_and_takes_the_narrower_ones() {
        let read = |text: &str| {
            let settings = read(Defaults::Git, &format!("[uploadpack]\n{text}")).unwrap();
            (settings.allow_any, settings.allow_tip, settings.allow_reachable)
        };
        assert_eq!(read("allowAnySHA1InWant = true"), (true, true, true));
        assert_eq!(read("allowTipSHA1InWant = true\nallowAnySHA1InWant = false"), (false, false, false));
        assert_eq!(read("allowAnySHA1InWant = true\nallowTipSHA1InWant = no"), (false, false, true));
        assert_eq!(read("allowTipSHA1InWant = 1"), (false, true, false));
    }

    #[test]
    fn hidden_refs_keep_the_order_over_sections() {
        let text =
            "[transfer]\nhideRefs = refs/a\n[uploadpack]\nhideRefs = !refs/a/b\n[transfer]\nhideRefs = refs/a/b/c\n";
        let hidden = read(Defaults::Git, text).unwrap().hidden;
        assert!(hidden.hides(b"refs/a/x") && !hidden.hides(b"refs/a/b/x") && hidden.hides(b"refs/a/b/c"));
    }

    #[test]
    fn filters_bundles_and_uris_are_read() {
        let id = "1".repeat(40);
        let text = format!(
            "[uploadpackfilter]\nallow = false\n[uploadpackfilter \"blob:none\"]\nallow = true\n[uploadpackfilter \"tree\"]\nmaxDepth = 3\n\
             [bundle]\nversion = 1\n[bundle \"one\"]\nuri = https://x/One\n[uploadpack]\nblobPackfileUri = {id} abc https://x/p\n"
        );
        let settings = read(Defaults::Git, &text).unwrap();
        assert!(!settings.filters.others && settings.filters.tree_depth_max == 3);
        assert_eq!(settings.filters.named, [("blob:none".to_owned(), true), ("tree".to_owned(), true)]);
        assert_eq!(
            settings.bundle,
            [("bundle.version".into(), "1".into()), ("bundle.one.uri".into(), "https://x/One".into())]
        );
        assert_eq!(
            (settings.blob_packfile_uris[0].pack.as_str(), settings.blob_packfile_uris[0].uri.as_str()),
            ("abc", "https://x/p")
        );
    }

    #[test]
    fn formats_this_server_does_not_know_are_refused() {
        for (text, served) in [
            ("[core]\nrepositoryformatversion = 0\n[extensions]\nwhatever = 1\n", true),
            ("[core]\nrepositoryformatversion = 1\n[extensions]\nwhatever = 1\n", false),
            (
                "[core]\nrepositoryformatversion = 1\n[extensions]\nnoop = 1\npreciousObjects = true\npartialClone = o\n",
                true,
            ),
            ("[core]\nrepositoryformatversion = 1\n[extensions]\nobjectFormat = sha256\nrefStorage = reftable\n", true),
            ("[core]\nrepositoryformatversion = 0\n[extensions]\nobjectFormat = sha256\n", false),
            ("[core]\nrepositoryformatversion = 1\n[extensions]\nobjectFormat = md5\n", false),
            ("[core]\nrepositoryformatversion = 2\n", false),
        ] {
            let settings = read(Defaults::Git, text);
            assert_eq!(settings.is_ok(), served, "{text}");
            assert!(served || matches!(settings, Err(Absent::Unsupported(_))));
        }
        let settings =
            read(Defaults::Git, "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = sha256\n").unwrap();
        assert_eq!(settings.kind, Kind::Sha256);
    }

    #[test]
    fn nonsense_is_a_fault_that_names_the_key() {
        let Err(Absent::Broken(text)) = read(Defaults::Git, "[uploadpack]\nallowFilter = perhaps\n") else { panic!() };
        assert!(text.contains("uploadpack.allowfilter"), "{text}");
        assert!(matches!(read(Defaults::Git, "[core\n"), Err(Absent::Broken(_))));
    }

    #[test]
    fn values_are_those_git_reads() {
        let folder = tempfile::tempdir().unwrap();
        let text = "\u{feff}[transfer] hideRefs = refs/one ; a comment\n[TRANSFER]\n\thiderefs = \"refs/t#wo\" # another\n\
            hideRefs=refs/th\\\n\tree\nhideRefs = \"a\\\"b\\\\c\\td\"  \nhideRefs = in  side \n[bundle \"A \\\"b\\\\]\"] uri = \
            https://x/?a=b&c=d\n[uploadpackfilter.TREE]\nallow\n[uploadpackfilter \"Tree\"]\nallow = no\nallow =\n";
        std::fs::write(folder.path().join("config"), text).unwrap();
        let stock = crate::repo::catalogue::tests::git(folder.path(), &["config", "-f", "config", "--list", "-z"]);
        let mut own = String::new();
        for value in values(text.as_bytes(), "x").unwrap() {
            let subsection = value.subsection.map(|name| format!(".{name}")).unwrap_or_default();
            let text = value.value.map(|text| format!("\n{}", String::from_utf8(text).unwrap())).unwrap_or_default();
            own.push_str(&format!("{}{subsection}.{}{text}\0", value.section, value.key));
        }
        assert_eq!(own, stock);
    }

    #[test]
    fn numbers_are_those_git_reads() {
        let folder = tempfile::tempdir().unwrap();
        for text in
            ["0", "7", "+7", "0x10", "0XfF", "010", "2k", "1M", "08", "0x", "1z", "-3", "--3", "", "9999999999g"]
        {
            let config = format!("[uploadpack]\nkeepAlive = {text}\n");
            std::fs::write(folder.path().join("config"), &config).unwrap();
            let stock = std::process::Command::new("git")
                .args(["config", "-f", "config", "--type=int", "uploadpack.keepAlive"])
                .current_dir(folder.path())
                .output()
                .unwrap();
            let stock = stock.status.success().then(|| String::from_utf8(stock.stdout).unwrap().trim().to_owned());
            let own = values(config.as_bytes(), "x").unwrap()[0].number().ok().map(|number| number.to_string());
            assert_eq!(own, stock, "{text:?}");
        }
    }

    #[test]
    fn includes_and_programs_are_not_followed() {
        let text =
            "[include]\npath = /etc/passwd\n[uploadpack]\npackObjectsHook = touch /tmp/owned\n[core]\nsshCommand = x\n";
        assert_eq!(read(Defaults::Git, text).unwrap(), Settings::new(Defaults::Git));
    }
}
