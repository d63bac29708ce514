// Composes the scripts. `mod.rs`, the tests of the scripts and the benches include this file, each with its own path to the
// folder of the Lua files.

/// A Lua file: a script, or a part of some.
struct LuaFile {
    name: &'static str,
    text: &'static str,
}

/// The choice where a part has several files.
#[derive(Clone, Copy)]
struct Form {
    /// What the name of a file begins with that takes the place of another in this layout of locks; empty for Redisson's.
    layout: &'static str,
    /// The file that is the part `publish`.
    publish: &'static str,
}

macro_rules! lua_files {
    ($folder:literal) => {
        lua_files!(
            $folder:
            acquire acquire_all acquire_alone acquire_function acquire_one annotate arguments batch common describe
            fence fence_again fence_keep force grant hint holder_of holds inspect line_acquire line_common
            line_inspect line_leave line_release look mark metadata mine note note_read noted owner permits_acquire
            permits_common permits_force permits_inspect permits_release permits_renew permits_resize permits_wake
            plain_acquire plain_acquire_alone plain_grant plain_holder_of plain_holds plain_inspect plain_look
            plain_mine plain_record plain_release plain_release_keep plain_steal_grant propose protected_call publish
            publish_shard record release release_alone release_function release_keep renew reserve rest_yield
            rw_acquire rw_common rw_force rw_grant rw_inspect rw_leave rw_release rw_renew rw_wake steal steal_grant
            uptime wake wake_function want
        )
    };
    ($folder:literal: $($name:ident)+) => {
        [$(LuaFile {
            name: stringify!($name),
            text: include_str!(concat!($folder, stringify!($name), ".lua")),
        }),+]
    };
}

/// Returns the text of a script: its file, with other files in place of each line `-- @include a, b`. A file of the layout takes
/// the place of the one with the rest of its name.
fn compose(files: &[LuaFile], name: &str, form: Form) -> String {
    let name = if name == "publish" { form.publish } else { name };
    let of_layout = |file: &&LuaFile| {
        !form.layout.is_empty() && file.name.strip_prefix(form.layout) == Some(name)
    };
    let found = files.iter().find(of_layout).or_else(|| files.iter().find(|file| file.name == name));
    let Some(file) = found else {
        return format!("error('there is no {name}.lua')\n");
    };
    let mut script = String::with_capacity(file.text.len() * 4);
    for line in file.text.lines() {
        match line.trim_start().strip_prefix("-- @include ") {
            Some(parts) => script.extend(parts.split(", ").map(|part| compose(files, part, form))),
            None => script.extend([line, "\n"]),
        }
    }
    script
}
