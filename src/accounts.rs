//! `packring access`: what an operator asks becomes one transaction, and tables for people or JSON for programs.
//!
//! Knows nothing of requests. Invariant: a command changes everything it says or nothing.
//! Read first: `tests/access.rs`, `each_verb_of_access_does_what_it_says`.

use std::{fmt::Write as _, io::Read as _, path::Path, sync::Arc};

use serde_json::{Value, json};

use crate::{
    access::{
        Directory, Pattern, Store, StoreFault, Token, Verdict, canonical,
        directory::{RefLimit, Refused},
        gate::unix_time,
    },
    flags::{AccessFlags, AccessVerb, GrantVerb, Moment, PrincipalVerb, TokenVerb, Visibility, VisibilityVerb},
};

/// Does what was asked and returns what to print.
///
/// # Errors
/// The database cannot be used, or what was asked makes no sense for what it holds.
pub fn run(flags: &AccessFlags) -> Result<String, StoreFault> {
    let path = flags.access.as_deref();
    let path = path.ok_or_else(|| StoreFault::Refused("name the database: --access FILE".to_owned()))?;
    let said = match &flags.verb {
        AccessVerb::Init => init(path)?,
        verb => act(&mut Store::open(path)?, verb)?,
    };
    Ok(if flags.json { format!("{:#}\n", said.json) } else { said.text })
}

/// The same thing for people and for programs.
struct Said {
    text: String,
    json: Value,
}

impl Said {
    fn done(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { json: json!({ "done": text }), text: text + "\n" }
    }

    /// A table with a heading for each column; the same rows as objects.
    fn table<const N: usize>(headings: [&str; N], rows: Vec<[Value; N]>) -> Self {
        let texts: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(shown)).collect();
        let widths: [usize; N] = std::array::from_fn(|at| {
            let cells = texts.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count());
            cells.chain(headings.get(at).map(|heading| heading.len())).max().unwrap_or(0)
        });
        let mut text = String::new();
        for row in std::iter::once(headings.map(str::to_owned)).chain(texts) {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            let _ = writeln!(text, "{}", cells.join("  ").trim_end());
        }
        let keys = headings.map(|heading| heading.to_lowercase().replace(' ', "_"));
        let objects = rows.into_iter().map(|row| Value::Object(keys.iter().cloned().zip(row).collect()));
        Self { json: Value::Array(objects.collect()), text }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn init(path: &Path) -> Result<Said, StoreFault> {
    Store::create(path)?;
    Ok(Said::done(format!(
        "{} is made: with `serve --access`, everything is private that it does not make public",
        path.display()
    )))
}

fn act(store: &mut Store, verb: &AccessVerb) -> Result<Said, StoreFault> {
    match verb {
        AccessVerb::Init => Err(StoreFault::Exists),
        AccessVerb::Principal(verb) => on_principals(store, verb),
        AccessVerb::Token(verb) => on_tokens(store, verb),
        AccessVerb::Grant(verb) => on_grants(store, verb),
        AccessVerb::Visibility(verb) => on_visibility(store, verb),
        AccessVerb::WhoCan { repository } => who_can(store, repository),
        AccessVerb::Explain { token, repository } => explain(store, token.as_deref(), repository),
    }
}

fn on_principals(store: &mut Store, verb: &PrincipalVerb) -> Result<Said, StoreFault> {
    match verb {
        PrincipalVerb::Add { name } => {
            store.add_principal(name, unix_time())?;
            Ok(Said::done(format!("{name} is there; it may read nothing that is private yet")))
        }
        PrincipalVerb::Disable { name } => {
            store.set_disabled(name, true)?;
            Ok(Said::done(format!("all tokens of {name} are refused")))
        }
        PrincipalVerb::Enable { name } => {
            store.set_disabled(name, false)?;
            Ok(Said::done(format!("the tokens of {name} are accepted again")))
        }
        PrincipalVerb::List => {
            let rows =
                store.records()?.principals.into_iter().map(|one| {
                    [json!(one.name), json!(one.disabled), json!(one.tokens.len()), json!(one.grants.len())]
                });
            Ok(Said::table(["PRINCIPAL", "DISABLED", "TOKENS", "GRANTS"], rows.collect()))
        }
    }
}

fn on_tokens(store: &mut Store, verb: &TokenVerb) -> Result<Said, StoreFault> {
    match verb {
        TokenVerb::Create { principal, name, expires, repo } => {
            let now = unix_time();
            let expires = expires.map(|moment| match moment {
                Moment::In(seconds) => now.saturating_add(seconds),
                Moment::At(time) => time,
            });
            let token = store.create_token(principal, name, expires, repo, now)?;
            let json =
                json!({ "principal": principal, "name": name, "expires": day(expires), "token": token.reveal() });
            // Nothing but the token, so that it can be read by a program without --json as well.
            Ok(Said { text: format!("{}\n", token.reveal()), json })
        }
        TokenVerb::Revoke { principal, name } => {
            store.revoke_token(principal, name, unix_time())?;
            Ok(Said::done(format!("the token {name} of {principal} is revoked")))
        }
        TokenVerb::List => {
            let rows = store.tokens()?.into_iter().map(|row| {
                let used = (row.last_used > 0).then_some(row.last_used);
                let [created, expires, used, revoked] = [Some(row.created), row.expires, used, row.revoked].map(day);
                [json!(row.principal), json!(row.name), created, expires, used, revoked, json!(row.scope)]
            });
            let headings = ["PRINCIPAL", "TOKEN", "CREATED", "EXPIRES", "LAST USED", "REVOKED", "REPOSITORIES"];
            Ok(Said::table(headings, rows.collect()))
        }
    }
}

fn on_grants(store: &mut Store, verb: &GrantVerb) -> Result<Said, StoreFault> {
    match verb {
        GrantVerb::Add { principal, pattern, refs } => {
            store.add_grant(principal, pattern, refs)?;
            let which = if refs.is_empty() { "all refs".to_owned() } else { refs.join(" ") };
            Ok(Said::done(format!("{principal} may read {pattern}: {which}")))
        }
        GrantVerb::Remove { principal, pattern } => {
            store.remove_grant(principal, pattern)?;
            Ok(Said::done(format!("{principal} may no longer read {pattern} by that grant")))
        }
        GrantVerb::List => {
            let mut rows = Vec::new();
            for one in store.records()?.principals {
                rows.extend(one.grants.into_iter().map(|(pattern, refs)| {
                    let refs: Vec<&str> = refs.iter().map(Pattern::as_str).collect();
                    [json!(one.name), json!(pattern.as_str()), json!(refs)]
                }));
            }
            Ok(Said::table(["PRINCIPAL", "REPOSITORIES", "ONLY REFS"], rows))
        }
    }
}

fn on_visibility(store: &mut Store, verb: &VisibilityVerb) -> Result<Said, StoreFault> {
    match verb {
        VisibilityVerb::Set { pattern, visibility } => {
            store.set_visibility(Some(pattern), *visibility == Visibility::Public)?;
            Ok(Said::done(format!("{pattern} is {}", word(*visibility == Visibility::Public))))
        }
        VisibilityVerb::Remove { pattern } => {
            store.remove_visibility(pattern)?;
            Ok(Said::done(format!("there is no rule for {pattern} any more")))
        }
        VisibilityVerb::Default { visibility } => {
            store.set_visibility(None, *visibility == Visibility::Public)?;
            Ok(Said::done(format!("repositories without a rule are {}", word(*visibility == Visibility::Public))))
        }
        VisibilityVerb::List => {
            let records = store.records()?;
            let mut rules: Vec<(String, bool)> =
                records.visibility.into_iter().map(|(pattern, public)| (pattern.to_string(), public)).collect();
            rules.sort_unstable();
            rules.push(("(all others)".to_owned(), records.public_by_default));
            let rows = rules.into_iter().map(|(pattern, public)| [json!(pattern), json!(word(public))]);
            Ok(Said::table(["REPOSITORIES", "VISIBILITY"], rows.collect()))
        }
    }
}

fn word(public: bool) -> &'static str {
    if public { "public" } else { "private" }
}

fn who_can(store: &mut Store, repository: &str) -> Result<Said, StoreFault> {
    let directory = Directory::new(store.records()?, None);
    let name = canonical(repository.as_bytes());
    let everyone = directory.is_public(name).then(|| [json!("(everyone)"), json!("all")]);
    let able = directory.who_can(name).into_iter().map(|(who, limit)| [json!(&*who), json!(refs_of(limit.as_deref()))]);
    Ok(Said::table(["PRINCIPAL", "REFS"], everyone.into_iter().chain(able).collect()))
}

fn refs_of(limit: Option<&RefLimit>) -> String {
    limit.map_or_else(|| "all".to_owned(), |limit| limit.key.replace('\n', " "))
}

fn explain(store: &mut Store, token: Option<&str>, repository: &str) -> Result<Said, StoreFault> {
    let directory = Arc::new(Directory::new(store.records()?, None));
    let name = canonical(repository.as_bytes());
    let (who, caller) = match token {
        None => ("nobody in particular".to_owned(), Ok(None)),
        Some(text) => match read_token(text) {
            None => ("what was given has not the form of a token".to_owned(), Err(Refused::Unknown)),
            Some(token) => match directory.identify(&token, unix_time()) {
                Ok(caller) => (format!("{}, by the token {}", caller.principal, caller.token_name), Ok(Some(caller))),
                Err(refused) => (refused.to_string(), Err(refused)),
            },
        },
    };
    let visibility = word(directory.is_public(name));
    let (answer, reads) = match &caller {
        Err(_) => ("401: the token does not hold".to_owned(), false),
        Ok(caller) => match directory.judge(caller.as_ref(), name) {
            Verdict::Public => ("may read all refs, as everyone may".to_owned(), true),
            Verdict::Granted(None) => ("may read all refs, by a grant".to_owned(), true),
            Verdict::Granted(Some(limit)) => (format!("may read {}, by a grant", refs_of(Some(&limit))), true),
            Verdict::Denied if caller.is_some() => ("404: no grant, or the token is not good for it".to_owned(), false),
            Verdict::Denied => ("401: a token is needed".to_owned(), false),
        },
    };
    let shown = String::from_utf8_lossy(name).into_owned();
    let text = format!("repository  {shown}\nvisibility  {visibility}\nwho         {who}\nanswer      {answer}\n");
    let json = json!({ "repository": shown, "visibility": visibility, "who": who, "answer": answer, "reads": reads });
    Ok(Said { text, json })
}

fn read_token(text: &str) -> Option<Token> {
    if text != "-" {
        return Token::parse(text.as_bytes());
    }
    let mut line = String::new();
    std::io::stdin().take(TOKEN_LINE_MAX).read_to_string(&mut line).ok()?;
    Token::parse(line.trim().as_bytes())
}

fn day(time: Option<u64>) -> Value {
    let moment = time.and_then(|time| jiff::Timestamp::from_second(i64::try_from(time).ok()?).ok());
    moment.map_or(Value::Null, |moment| json!(moment.to_string()))
}

/// Bytes of standard input that are looked at for a token.
const TOKEN_LINE_MAX: u64 = 4096;
