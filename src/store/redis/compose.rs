// Composes the scripts from their parts. `scripts.rs`, the tests of the scripts and the benches include this file, each
// with its own path to the folder of the parts.

macro_rules! compose {
    ($dir:literal, acquire) => {
        compose!($dir; "common", "acquire_alone", "acquire")
    };
    ($dir:literal, release, $publish:literal) => {
        compose!($dir; "common", $publish, "release_alone", "release", "wake")
    };
    ($dir:literal, batch, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish),
            // All acquires of a call share these: see `acquire.lua`.
            "local ttl, count, block, retention, now, newest\n",
            "local function acquire(lock, fence, holder)\n",
            compose!($dir; "acquire"),
            "end\nlocal function release(lock, holder)\n",
            compose!($dir; "release", "wake"),
            "end\n",
            compose!($dir; "batch"),
        )
    };
    ($dir:literal, force, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish),
            "local function wake(lock)\n",
            compose!($dir; "wake"),
            "end\n",
            compose!($dir; "force"),
        )
    };
    ($dir:literal, renew) => {
        compose!($dir; "common", "check", "renew")
    };
    ($dir:literal; $($part:literal),+) => {
        concat!($(include_str!(concat!($dir, $part, ".lua"))),+)
    };
}
