// Composes the scripts. `mod.rs`, the tests of the scripts and the benches include this file, each with its own path to the
// folder of the Lua files.

/// A Lua file: a script, or a part of some.
struct LuaFile {
    name: &'static str,
    text: &'static str,
}

macro_rules! lua_files {
    ($folder:literal) => {
        lua_files!(
            $folder:
            acquire acquire_all acquire_alone acquire_function age annotate batch check common describe fence
            fence_keep force grant hint inspect line_acquire line_common line_inspect line_leave
            line_release metadata note note_read noted owner permits_acquire permits_common permits_force permits_inspect
            permits_release permits_renew permits_resize permits_wake publish publish_shard release
            release_alone release_function release_keep renew rest_yield run rw_acquire rw_common rw_force rw_grant
            rw_inspect rw_leave rw_release rw_renew rw_wake steal steal_grant wake wake_function want
        )
    };
    ($folder:literal: $($name:ident)+) => {
        [$(LuaFile {
            name: stringify!($name),
            text: include_str!(concat!($folder, stringify!($name), ".lua")),
        }),+]
    };
}

/// Returns the text of a script: its file, with other files in place of each line `-- @include a, b`. The part `publish` is
/// the one that is given.
fn compose(files: &[LuaFile], name: &str, publish: &str) -> String {
    let name = if name == "publish" { publish } else { name };
    let Some(file) = files.iter().find(|file| file.name == name) else {
        return format!("error('there is no {name}.lua')\n");
    };
    let mut script = String::with_capacity(file.text.len() * 4);
    for line in file.text.lines() {
        match line.trim_start().strip_prefix("-- @include ") {
            Some(parts) => script.extend(parts.split(", ").map(|part| compose(files, part, publish))),
            None => script.extend([line, "\n"]),
        }
    }
    script
}
