//! The store: one SQLite file becomes records, and each change an operator asks for becomes one transaction.
//!
//! Decides about no request. Invariants: a change is durable when its call returns, or it never was; no text of a token is
//! ever written; a file that is not ours, or that is damaged, is refused before anything is read from it.
//! Source: sqlite.org, "Write-Ahead Logging", "PRAGMA application_id", "PRAGMA data_version".
//! Read first: `what_is_written_is_read_back`, `tests/access.rs`.

use std::{collections::HashMap, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, params};

use super::{
    directory::{PrincipalRecord, Records, TokenRecord},
    pattern::{BadPattern, Pattern},
    token::{Token, TokenDigest},
};

/// Marks a file as ours (`PRAGMA application_id`): `pkra`.
const APPLICATION: i32 = 0x706b_7261;
/// Version of the tables (`PRAGMA user_version`).
const VERSION: i32 = 1;
/// How long a change waits for another one to end.
const PATIENCE: Duration = Duration::from_secs(5);

const TABLES: &str = "
    CREATE TABLE principal (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, disabled INTEGER NOT NULL DEFAULT 0, created INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE token (
        id INTEGER PRIMARY KEY AUTOINCREMENT, principal INTEGER NOT NULL REFERENCES principal, name TEXT NOT NULL,
        digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32), created INTEGER NOT NULL, expires INTEGER,
        last_used INTEGER NOT NULL DEFAULT 0, revoked INTEGER
    ) STRICT;
    CREATE UNIQUE INDEX living_token ON token (principal, name) WHERE revoked IS NULL;
    CREATE TABLE token_scope (
        token INTEGER NOT NULL REFERENCES token, pattern TEXT NOT NULL, PRIMARY KEY (token, pattern)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE access_grant (
        id INTEGER PRIMARY KEY, principal INTEGER NOT NULL REFERENCES principal, pattern TEXT NOT NULL,
        UNIQUE (principal, pattern)
    ) STRICT;
    CREATE TABLE grant_ref (
        access_grant INTEGER NOT NULL REFERENCES access_grant ON DELETE CASCADE, pattern TEXT NOT NULL,
        PRIMARY KEY (access_grant, pattern)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE visibility (pattern TEXT PRIMARY KEY, public INTEGER NOT NULL) STRICT;
    CREATE TABLE preset (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    INSERT INTO preset VALUES ('visibility', 'private');
";

/// Why a database cannot be used, or a change not be made.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// There is no file.
    #[error("there is no access database; make one with `packring access init --access FILE`")]
    Missing,
    /// There is one already.
    #[error("there is a file already; remove it first if you mean to start anew")]
    Exists,
    /// It is something else, or of a version we do not know.
    #[error("this file is no access database of this version of packring")]
    Foreign,
    /// Its content makes no sense.
    #[error("the access database is damaged ({0}); restore it from a copy, or export it with `sqlite3 FILE .recover`")]
    Damaged(String),
    /// What a change names is not there, or is there already.
    #[error("{0}")]
    Refused(String),
    /// A pattern is none.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    /// Anything else SQLite says.
    #[error("the access database cannot be used: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The kernel gives no randomness.
    #[error("no randomness for a token: {0}")]
    Random(String),
}

impl StoreFault {
    fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }
}

/// An open database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// One token for people to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its principal.
    pub principal: String,
    /// Its name.
    pub name: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The same.
    pub expires: Option<u64>,
    /// The same; 0 for never.
    pub last_used: u64,
    /// The same.
    pub revoked: Option<u64>,
    /// Repositories it is good for.
    pub scope: Vec<String>,
}

impl Store {
    /// Makes a new database; not readable for others.
    ///
    /// # Errors
    /// There is a file already, or none can be made there.
    pub fn create(path: &Path) -> Result<Self, StoreFault> {
        use std::os::unix::fs::OpenOptionsExt;
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(StoreFault::Exists),
            Err(error) => return Err(StoreFault::refused(error.to_string())),
        }
        let mut connection = connect(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
        Ok(Self { connection })
    }

    /// Opens a database and checks that it is whole.
    ///
    /// # Errors
    /// It is not there, not ours or damaged; or it stays locked.
    pub fn open(path: &Path) -> Result<Self, StoreFault> {
        if !path.exists() {
            return Err(StoreFault::Missing);
        }
        let connection = connect(path)?;
        let mark = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let marks = mark("application_id").and_then(|id| Ok((id, mark("user_version")?)));
        match marks.map_err(damaged)? {
            (APPLICATION, VERSION) => {}
            _ => return Err(StoreFault::Foreign),
        }
        let verdict: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(damaged)?;
        if verdict != "ok" {
            return Err(StoreFault::Damaged(verdict.lines().next().unwrap_or_default().to_owned()));
        }
        Ok(Self { connection })
    }

    /// Changes when another connection has committed something. Costs a look into shared memory.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn version(&self) -> Result<i64, StoreFault> {
        Ok(self.connection.pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Everything, as of one moment.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn records(&mut self) -> Result<Records, StoreFault> {
        let transaction = self.connection.transaction()?;
        let mut records = Records { public_by_default: default_is_public(&transaction)?, ..Records::default() };
        each(&transaction, "SELECT pattern, public FROM visibility", |row| {
            records.visibility.push((stored(&row.get::<_, String>(0)?)?, row.get(1)?));
            Ok(())
        })?;
        let mut places: HashMap<i64, usize> = HashMap::new();
        each(&transaction, "SELECT id, name, disabled FROM principal ORDER BY name", |row| {
            places.insert(row.get(0)?, records.principals.len());
            let (name, disabled) = (row.get(1)?, row.get(2)?);
            records.principals.push(PrincipalRecord { name, disabled, ..PrincipalRecord::default() });
            Ok(())
        })?;
        read_tokens(&transaction, &places, &mut records.principals)?;
        read_grants(&transaction, &places, &mut records.principals)?;
        Ok(records)
    }

    /// Writes when tokens were last used, all in one transaction.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_uses(&mut self, uses: impl Iterator<Item = (i64, u64)>) -> Result<(), StoreFault> {
        let transaction = self.connection.transaction()?;
        {
            let mut update =
                transaction.prepare_cached("UPDATE token SET last_used = ?2 WHERE id = ?1 AND last_used < ?2")?;
            for (id, time) in uses {
                update.execute(params![id, time.cast_signed()])?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Adds a principal.
    ///
    /// # Errors
    /// The name is taken or none.
    pub fn add_principal(&mut self, name: &str, now: u64) -> Result<(), StoreFault> {
        check_name(name)?;
        self.change(|change| {
            let sql = "INSERT INTO principal (name, created) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            match change.execute(sql, params![name, now.cast_signed()])? {
                0 => Err(StoreFault::refused(format!("there is a principal {name} already"))),
                _ => Ok(()),
            }
        })
    }

    /// Has all tokens of a principal refused, or accepted again.
    ///
    /// # Errors
    /// There is no such principal.
    pub fn set_disabled(&mut self, name: &str, disabled: bool) -> Result<(), StoreFault> {
        self.change(|change| {
            let id = principal(change, name)?;
            change.execute("UPDATE principal SET disabled = ?2 WHERE id = ?1", params![id, disabled])?;
            Ok(())
        })
    }

    /// Makes a token, which is shown here and never again.
    ///
    /// # Errors
    /// There is no such principal, or it has a living token of that name; or a pattern of the scope is none.
    pub fn create_token(
        &mut self,
        owner: &str,
        name: &str,
        expires: Option<u64>,
        scope: &[String],
        now: u64,
    ) -> Result<Token, StoreFault> {
        check_name(name)?;
        let scope: Vec<Pattern> = scope.iter().map(|text| Pattern::of_repositories(text)).collect::<Result<_, _>>()?;
        let token = Token::random().map_err(|error| StoreFault::Random(error.to_string()))?;
        self.change(|change| {
            let owner_id = principal(change, owner)?;
            let sql = "INSERT INTO token (principal, name, digest, created, expires) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO NOTHING";
            let values = params![owner_id, name, token.digest().0, now.cast_signed(), expires.map(u64::cast_signed)];
            if change.execute(sql, values)? == 0 {
                return Err(StoreFault::refused(format!("{owner} has a token {name} already; revoke it first")));
            }
            let id = change.last_insert_rowid();
            for pattern in &scope {
                change.execute("INSERT OR IGNORE INTO token_scope VALUES (?1, ?2)", params![id, pattern.as_str()])?;
            }
            Ok(())
        })?;
        Ok(token)
    }

    /// Revokes a living token for good.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn revoke_token(&mut self, owner: &str, name: &str, now: u64) -> Result<(), StoreFault> {
        self.change(|change| {
            let id = principal(change, owner)?;
            let sql = "UPDATE token SET revoked = ?3 WHERE principal = ?1 AND name = ?2 AND revoked IS NULL";
            match change.execute(sql, params![id, name, now.cast_signed()])? {
                0 => Err(StoreFault::refused(format!("{owner} has no living token {name}"))),
                _ => Ok(()),
            }
        })
    }

    /// All tokens, revoked ones too, by principal and name.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tokens(&self) -> Result<Vec<TokenRow>, StoreFault> {
        let mut rows = Vec::new();
        let sql = "SELECT p.name, t.name, t.created, t.expires, t.last_used, t.revoked,
            (SELECT group_concat(pattern, char(10)) FROM token_scope WHERE token = t.id)
            FROM token t JOIN principal p ON p.id = t.principal ORDER BY p.name, t.name, t.id";
        each(&self.connection, sql, |row| {
            let scope: Option<String> = row.get(6)?;
            rows.push(TokenRow {
                principal: row.get(0)?,
                name: row.get(1)?,
                created: time(row.get(2)?),
                expires: row.get::<_, Option<i64>>(3)?.map(time),
                last_used: time(row.get(4)?),
                revoked: row.get::<_, Option<i64>>(5)?.map(time),
                scope: scope.iter().flat_map(|text| text.lines()).map(str::to_owned).collect(),
            });
            Ok(())
        })?;
        Ok(rows)
    }

    /// Lets a principal read repositories: all their refs, or those that match one of `refs`. Replaces a grant for the same
    /// pattern.
    ///
    /// # Errors
    /// There is no such principal, or a pattern is none.
    pub fn add_grant(&mut self, name: &str, pattern: &str, refs: &[String]) -> Result<(), StoreFault> {
        let pattern = Pattern::of_repositories(pattern)?;
        let refs: Vec<Pattern> = refs.iter().map(|text| ref_pattern(text)).collect::<Result<_, _>>()?;
        self.change(|change| {
            let id = principal(change, name)?;
            remove_grant(change, id, &pattern)?;
            change.execute(
                "INSERT INTO access_grant (principal, pattern) VALUES (?1, ?2)",
                params![id, pattern.as_str()],
            )?;
            let id = change.last_insert_rowid();
            for pattern in &refs {
                change.execute("INSERT OR IGNORE INTO grant_ref VALUES (?1, ?2)", params![id, pattern.as_str()])?;
            }
            Ok(())
        })
    }

    /// Takes a grant back.
    ///
    /// # Errors
    /// There is none for that pattern.
    pub fn remove_grant(&mut self, name: &str, pattern: &str) -> Result<(), StoreFault> {
        let pattern = Pattern::of_repositories(pattern)?;
        self.change(|change| match remove_grant(change, principal(change, name)?, &pattern)? {
            0 => Err(StoreFault::refused(format!("{name} has no grant for {pattern}"))),
            _ => Ok(()),
        })
    }

    /// Says whether repositories are public; `None` is about those without a rule.
    ///
    /// # Errors
    /// The pattern is none.
    pub fn set_visibility(&mut self, pattern: Option<&str>, public: bool) -> Result<(), StoreFault> {
        let pattern = pattern.map(Pattern::of_repositories).transpose()?;
        self.change(|change| {
            match &pattern {
                Some(pattern) => change.execute(
                    "INSERT INTO visibility VALUES (?1, ?2) ON CONFLICT DO UPDATE SET public = ?2",
                    params![pattern.as_str(), public],
                )?,
                None => {
                    let value = if public { "public" } else { "private" };
                    change.execute("UPDATE preset SET value = ?1 WHERE key = 'visibility'", params![value])?
                }
            };
            Ok(())
        })
    }

    /// Takes a rule about visibility back.
    ///
    /// # Errors
    /// There is none for that pattern.
    pub fn remove_visibility(&mut self, pattern: &str) -> Result<(), StoreFault> {
        let pattern = Pattern::of_repositories(pattern)?;
        self.change(|change| {
            match change.execute("DELETE FROM visibility WHERE pattern = ?1", params![pattern.as_str()])? {
                0 => Err(StoreFault::refused(format!("there is no rule for {pattern}"))),
                _ => Ok(()),
            }
        })
    }

    fn change<T>(&mut self, make: impl FnOnce(&Transaction<'_>) -> Result<T, StoreFault>) -> Result<T, StoreFault> {
        // Locked from its start: nothing it read can change before it writes.
        let transaction = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let made = make(&transaction)?;
        transaction.commit()?;
        Ok(made)
    }
}

fn connect(path: &Path) -> Result<Connection, StoreFault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // A committed change survives a power cut.
    for (name, value) in [("synchronous", "FULL"), ("foreign_keys", "ON"), ("trusted_schema", "OFF")] {
        connection.pragma_update(None, name, value).map_err(damaged)?;
    }
    Ok(connection)
}

fn damaged(error: rusqlite::Error) -> StoreFault {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match error.sqlite_error_code() {
        Some(NotADatabase) => StoreFault::Foreign,
        Some(DatabaseCorrupt) => StoreFault::Damaged(error.to_string()),
        _ => StoreFault::Sqlite(error),
    }
}

fn each(
    connection: &Connection,
    sql: &str,
    mut take: impl FnMut(&rusqlite::Row<'_>) -> Result<(), StoreFault>,
) -> Result<(), StoreFault> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

fn read_tokens(
    connection: &Connection,
    places: &HashMap<i64, usize>,
    principals: &mut [PrincipalRecord],
) -> Result<(), StoreFault> {
    let mut scopes: HashMap<i64, Vec<Pattern>> = HashMap::new();
    each(connection, "SELECT token, pattern FROM token_scope", |row| {
        scopes.entry(row.get(0)?).or_default().push(stored(&row.get::<_, String>(1)?)?);
        Ok(())
    })?;
    let sql = "SELECT id, principal, name, digest, expires, last_used FROM token WHERE revoked IS NULL";
    each(connection, sql, |row| {
        let id: i64 = row.get(0)?;
        let token = TokenRecord {
            id,
            name: row.get(2)?,
            digest: TokenDigest(row.get(3)?),
            expires: row.get::<_, Option<i64>>(4)?.map(time),
            last_used: time(row.get(5)?),
            scope: scopes.remove(&id).unwrap_or_default(),
        };
        owner(places, principals, row.get(1)?)?.tokens.push(token);
        Ok(())
    })
}

fn read_grants(
    connection: &Connection,
    places: &HashMap<i64, usize>,
    principals: &mut [PrincipalRecord],
) -> Result<(), StoreFault> {
    let mut refs: HashMap<i64, Vec<Pattern>> = HashMap::new();
    each(connection, "SELECT access_grant, pattern FROM grant_ref ORDER BY pattern", |row| {
        refs.entry(row.get(0)?).or_default().push(stored(&row.get::<_, String>(1)?)?);
        Ok(())
    })?;
    each(connection, "SELECT id, principal, pattern FROM access_grant ORDER BY pattern", |row| {
        let refs = refs.remove(&row.get(0)?).unwrap_or_default();
        let pattern = stored(&row.get::<_, String>(2)?)?;
        owner(places, principals, row.get(1)?)?.grants.push((pattern, refs));
        Ok(())
    })
}

fn owner<'p>(
    places: &HashMap<i64, usize>,
    principals: &'p mut [PrincipalRecord],
    id: i64,
) -> Result<&'p mut PrincipalRecord, StoreFault> {
    let found = places.get(&id).and_then(|place| principals.get_mut(*place));
    found.ok_or_else(|| StoreFault::Damaged("a token or grant has no principal".to_owned()))
}

fn default_is_public(connection: &Connection) -> Result<bool, StoreFault> {
    let sql = "SELECT value FROM preset WHERE key = 'visibility'";
    let value: Option<String> = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    // What is not said plainly is private.
    Ok(value.as_deref() == Some("public"))
}

/// A pattern was checked before it was stored; one that is none any more must not quietly allow or deny.
fn stored(text: &str) -> Result<Pattern, StoreFault> {
    Pattern::new(text).map_err(|error| StoreFault::Damaged(format!("the pattern {text:?}: {error}")))
}

fn time(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

fn principal(connection: &Connection, name: &str) -> Result<i64, StoreFault> {
    let found =
        connection.query_row("SELECT id FROM principal WHERE name = ?1", [name], |row| row.get(0)).optional()?;
    found.ok_or_else(|| StoreFault::refused(format!("there is no principal {name}")))
}

fn remove_grant(connection: &Connection, principal: i64, pattern: &Pattern) -> Result<usize, StoreFault> {
    let sql = "DELETE FROM access_grant WHERE principal = ?1 AND pattern = ?2";
    Ok(connection.execute(sql, params![principal, pattern.as_str()])?)
}

fn ref_pattern(text: &str) -> Result<Pattern, StoreFault> {
    if !text.starts_with("refs/") && text != "**" {
        return Err(StoreFault::refused(format!("{text} is no pattern of refs; they start with refs/")));
    }
    Ok(Pattern::new(text)?)
}

/// Names stand in logs and tables.
fn check_name(name: &str) -> Result<(), StoreFault> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(sound) || name.starts_with('-') {
        let text = "a name has 1 to 64 letters, digits or ._@+- and does not start with -";
        return Err(StoreFault::refused(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::directory::{Directory, Verdict};
    use std::sync::Arc;

    fn made() -> (tempfile::TempDir, std::path::PathBuf, Store) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.db");
        let store = Store::create(&path).unwrap();
        (folder, path, store)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (_folder, path, mut store) = made();
        store.add_principal("ann", 1).unwrap();
        let token = store.create_token("ann", "laptop", Some(50), &["a/**".into()], 2).unwrap();
        store.add_grant("ann", "a/*.git", &["refs/heads/*".into()]).unwrap();
        store.set_visibility(Some("open/**"), true).unwrap();
        let mut again = Store::open(&path).unwrap();
        let directory = Arc::new(Directory::new(again.records().unwrap(), None));
        let caller = directory.identify(&token, 49).unwrap();
        assert_eq!((&*caller.principal, &*caller.token_name), ("ann", "laptop"));
        let Verdict::Granted(Some(limit)) = directory.judge(Some(&caller), b"a/x") else { panic!() };
        assert!(limit.shows(b"refs/heads/main") && !limit.shows(b"refs/tags/v1"));
        assert!(directory.is_public(b"open/x") && !directory.is_public(b"x"));
        again.write_uses(directory.last_uses()).unwrap();
        assert_eq!(store.tokens().unwrap()[0].last_used, 49);
        store.revoke_token("ann", "laptop", 60).unwrap();
        assert!(store.revoke_token("ann", "laptop", 60).is_err());
        let after = Arc::new(Directory::new(again.records().unwrap(), Some(&directory)));
        assert!(after.identify(&token, 3).is_err());
        store.create_token("ann", "laptop", None, &[], 61).unwrap();
        assert_eq!(store.tokens().unwrap().iter().map(|row| row.revoked).collect::<Vec<_>>(), [Some(60), None]);
        let bytes = [std::fs::read(&path).unwrap(), std::fs::read(path.with_extension("db-wal")).unwrap()].concat();
        let random = &token.reveal().as_bytes()[4..36];
        assert!(!bytes.windows(32).any(|window| window == random), "a token's text is in the file");
    }

    #[test]
    fn grants_and_rules_are_replaced_and_taken_back() {
        let (_folder, _path, mut store) = made();
        store.add_principal("ann", 1).unwrap();
        store.add_grant("ann", "/a/b/", &["refs/heads/*".into()]).unwrap();
        store.add_grant("ann", "a/b.git", &[]).unwrap();
        let grants = store.records().unwrap().principals[0].grants.clone();
        assert_eq!(grants, [(Pattern::new("a/b").unwrap(), vec![])]);
        store.remove_grant("ann", "a/b").unwrap();
        assert!(store.remove_grant("ann", "a/b").is_err());
        store.set_visibility(None, true).unwrap();
        store.set_visibility(Some("x"), true).unwrap();
        store.set_visibility(Some("x"), false).unwrap();
        let records = store.records().unwrap();
        assert!(records.public_by_default && records.visibility == [(Pattern::new("x").unwrap(), false)]);
        store.remove_visibility("x").unwrap();
        assert!(store.remove_visibility("x").is_err());
        store.set_disabled("ann", true).unwrap();
        assert!(store.records().unwrap().principals[0].disabled);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let (_folder, path, mut store) = made();
        assert!(matches!(Store::create(&path), Err(StoreFault::Exists)));
        store.add_principal("ann", 1).unwrap();
        for refused in [
            store.add_principal("ann", 1),
            store.add_principal("", 1),
            store.add_principal("-x", 1),
            store.add_principal("a b", 1),
            store.set_disabled("bob", true),
            store.add_grant("bob", "a", &[]),
            store.add_grant("ann", "a//b", &[]),
            store.add_grant("ann", "a", &["heads/x".into()]),
            store.create_token("ann", "x", None, &["..".into()], 1).map(drop),
        ] {
            assert!(refused.is_err());
        }
        let records = store.records().unwrap();
        assert!(records.principals.len() == 1 && records.principals[0].grants.is_empty());
        assert!(store.tokens().unwrap().is_empty());
    }

    #[test]
    fn files_that_are_missing_foreign_or_damaged_are_told_apart() {
        let (folder, path, mut store) = made();
        assert!(matches!(Store::open(&folder.path().join("none")), Err(StoreFault::Missing)));
        let foreign = folder.path().join("foreign");
        std::fs::write(&foreign, vec![b'x'; 8192]).unwrap();
        assert!(matches!(Store::open(&foreign), Err(StoreFault::Foreign)));
        Connection::open(folder.path().join("other")).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
        assert!(matches!(Store::open(&folder.path().join("other")), Err(StoreFault::Foreign)));
        for number in 0..500 {
            store.add_principal(&format!("p{number}"), 1).unwrap();
        }
        drop(store);
        let mut bytes = std::fs::read(&path).unwrap();
        let size = bytes.len();
        bytes[4096..size].fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreFault::Damaged(_))), "{:?}", Store::open(&path));
    }

    #[test]
    fn a_change_of_another_connection_is_seen_by_its_version() {
        let (_folder, path, mut store) = made();
        let watcher = Store::open(&path).unwrap();
        let before = watcher.version().unwrap();
        assert_eq!(watcher.version().unwrap(), before);
        store.add_principal("ann", 1).unwrap();
        assert_ne!(watcher.version().unwrap(), before);
    }
}
