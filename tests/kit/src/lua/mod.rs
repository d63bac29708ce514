//! A Redis server for scripts, in this process: its keys, its clock, and the Lua of Redis.
//!
//! It runs the text of a script as a server does: by Lua 5.1, with the conversions between Lua and replies, the protected
//! globals and the errors of Redis 7.0. Its clock is set from outside, and stands still within a script. So a run is the same
//! each time. It knows the commands that scripts use; any other one is an error, and is kept in [`State::unknown`].
//! `tests/redis/in_process.rs` compares it with a real server.

mod commands;
mod keyspace;
mod number;

pub use keyspace::{Data, Field, Keyspace, Scored};

use crate::Reply;
use mlua::{Error, Function, IntoLua, Lua, LuaOptions, MultiValue, StdLib, Table, Value, Variadic};
use number::of_double;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a command or a script answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(String),
    Error(String),
    List(Vec<Answer>),
}

impl Answer {
    fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    fn optional(text: Option<&Vec<u8>>) -> Self {
        text.map_or(Self::Nil, |text| Self::Bulk(text.clone()))
    }
}

/// What a server has beside its Lua.
#[derive(Default)]
pub struct State {
    pub keys: Keyspace,
    /// The number of subscribers of each channel that has any.
    pub listeners: BTreeMap<Vec<u8>, i64>,
    /// What was published, the oldest first.
    pub published: Vec<Message>,
    /// The commands that scripts have called and this server does not know.
    pub unknown: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: Vec<u8>,
    pub text: Vec<u8>,
}

pub struct LuaServer {
    lua: Lua,
    compiled: Mutex<HashMap<String, Function>>,
    state: Arc<Mutex<State>>,
}

/// The part of the library `redis` that is easier to say in Lua: an error is raised as a table, which no other language can.
const LIBRARY: &str = "
local ask, globals = ...
redis = {
  pcall = ask,
  call = function(...)
    local reply = ask(...)
    if type(reply) == 'table' and reply.err then
      error(reply, 0)
    end
    return reply
  end,
  error_reply = function(text)
    if string.sub(text, 1, 1) == '-' then
      text = string.sub(text, 2)
    end
    if not string.find(text, ' ', 1, true) then
      text = 'ERR ' .. text
    end
    return { err = text }
  end,
  status_reply = function(text)
    return { ok = text }
  end,
  acl_check_cmd = function()
    return true
  end,
}
setmetatable(globals, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable ' .. \"'\" .. tostring(name) .. \"'\", 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})
";

impl LuaServer {
    pub fn new() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        // The pcall of Lua itself, as servers have it.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options).expect("a Lua");
        prepare(&lua, &state).expect("the library of Redis");
        Self { lua, compiled: Mutex::default(), state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a command.
    pub fn command(&self, words: &[Vec<u8>]) -> Answer {
        self.state().run(words).unwrap_or_else(Answer::Error)
    }

    /// Runs a script.
    pub fn eval(&self, script: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Answer {
        let run = || -> Result<Value, Error> {
            let function = self.compile(script)?;
            let globals = self.lua.globals();
            for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
                let words = words.iter().map(|word| self.lua.create_string(word));
                let words: Vec<_> = words.collect::<Result<_, _>>()?;
                globals.raw_set(name, self.lua.create_sequence_from(words)?)?;
            }
            // The error itself, which may be a table.
            let called: MultiValue = self.guard()?.call(function)?;
            let mut called = called.into_iter();
            let done = called.next().is_some_and(|done| done == Value::Boolean(true));
            let value = called.next().unwrap_or(Value::Nil);
            if done { Ok(value) } else { Ok(self.escaped(value)?.into_lua(&self.lua)?) }
        };
        match run() {
            Ok(value) => answer_of(&value),
            Err(error) => Answer::Error(format!("ERR Error running script: {error}")),
        }
    }

    fn compile(&self, script: &str) -> Result<Function, Error> {
        let mut compiled = lock(&self.compiled);
        if let Some(function) = compiled.get(script) {
            return Ok(function.clone());
        }
        let function = self.lua.load(script).set_name("@user_script").into_function()?;
        compiled.insert(script.to_owned(), function.clone());
        Ok(function)
    }

    fn guard(&self) -> Result<Function, Error> {
        self.lua.globals().raw_get("pcall")
    }

    /// The error reply for an error that a script did not catch.
    fn escaped(&self, caught: Value) -> Result<Table, Error> {
        let text = match &caught {
            Value::Table(table) => match table.raw_get::<Value>("err")? {
                Value::String(text) => text.to_string_lossy(),
                _ => "ERR unknown error".to_owned(),
            },
            Value::String(text) => format!("ERR {}", text.to_string_lossy()),
            _ => "ERR unknown error".to_owned(),
        };
        let table = self.lua.create_table()?;
        table.raw_set("err", format!("{text} script: 0, on @user_script:1."))?;
        Ok(table)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic in the server")
}

fn prepare(lua: &Lua, state: &Arc<Mutex<State>>) -> Result<(), Error> {
    let state = Arc::clone(state);
    let ask = lua.create_function(move |lua, words: Variadic<Value>| {
        let answer = match words_of(&words) {
            Ok(words) => lock(&state).run_in_script(&words).unwrap_or_else(Answer::Error),
            Err(text) => Answer::Error(text),
        };
        value_of(lua, &answer)
    })?;
    let globals = lua.globals();
    lua.load(LIBRARY).set_name("@library").call::<()>((ask, &globals))
}

/// The words of a command as a script gives them. A number is written with 17 digits.
fn words_of(values: &[Value]) -> Result<Vec<Vec<u8>>, String> {
    if values.is_empty() {
        return Err("ERR Please specify at least one argument for this redis.call() call".into());
    }
    let word = |value: &Value| match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(of_double(*number as f64).into_bytes()),
        Value::Number(number) => Ok(of_double(*number).into_bytes()),
        _ => Err("ERR Lua redis lib command arguments must be strings or integers".to_owned()),
    };
    values.iter().map(word).collect()
}

/// An answer as a script sees it.
fn value_of(lua: &Lua, answer: &Answer) -> Result<Value, Error> {
    let field = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match answer {
        Answer::Nil => Ok(Value::Boolean(false)),
        Answer::Int(number) => (*number as f64).into_lua(lua),
        Answer::Bulk(text) => Ok(Value::String(lua.create_string(text)?)),
        Answer::Status(text) => field("ok", text),
        Answer::Error(text) => field("err", text),
        Answer::List(items) => {
            let items: Vec<_> =
                items.iter().map(|item| value_of(lua, item)).collect::<Result<_, _>>()?;
            Ok(Value::Table(lua.create_sequence_from(items)?))
        }
    }
}

/// What a script returns, as its caller sees it: a number loses its fraction, a list ends with its first nil.
fn answer_of(value: &Value) -> Answer {
    match value {
        Value::String(text) => Answer::bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Answer::Int(*number),
        Value::Number(number) => Answer::Int(*number as i64),
        Value::Boolean(true) => Answer::Int(1),
        Value::Table(table) => answer_of_table(table),
        _ => Answer::Nil,
    }
}

fn answer_of_table(table: &Table) -> Answer {
    let text = |name: &str| match table.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.to_string_lossy()),
        _ => None,
    };
    if let Some(text) = text("err") {
        return Answer::Error(text);
    }
    if let Some(text) = text("ok") {
        return Answer::Status(text);
    }
    let mut items = Vec::new();
    for at in 1.. {
        match table.raw_get::<Value>(at) {
            Ok(Value::Nil) | Err(_) => break,
            Ok(item) => items.push(answer_of(&item)),
        }
    }
    Answer::List(items)
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Nil => Self::Nil,
            Answer::Int(number) => Self::Int(number),
            Answer::Bulk(text) => Self::Text(String::from_utf8_lossy(&text).into_owned()),
            Answer::Status(text) => Self::Text(text),
            Answer::Error(text) => Self::Error(text),
            Answer::List(items) => Self::List(items.into_iter().map(Self::from).collect()),
        }
    }
}
