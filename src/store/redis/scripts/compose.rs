// Composes the scripts from their parts. `scripts.rs`, the tests of the scripts and the benches include this file, each
// with its own path to the folder of the parts.

macro_rules! compose {
    ($dir:literal, acquire) => {
        compose!($dir; "common", "acquire_alone", "acquire", "fence", "grant")
    };
    ($dir:literal, release, $publish:literal) => {
        compose!($dir; "common", $publish, "release_alone", "release", "wake")
    };
    ($dir:literal, batch, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish),
            compose!($dir, function_acquire),
            compose!($dir, function_release),
            compose!($dir; "batch"),
        )
    };
    ($dir:literal, acquire_all) => {
        concat!(
            compose!($dir; "common", "check"),
            compose!($dir, function_acquire),
            compose!($dir; "acquire_all"),
        )
    };
    ($dir:literal, force, $publish:literal) => {
        concat!(
            compose!($dir; "common", "check", $publish, "noted", "note"),
            compose!($dir, function_wake),
            compose!($dir; "force"),
        )
    };
    ($dir:literal, annotate, $publish:literal) => {
        compose!($dir, run, [$publish], ["annotate"])
    };
    ($dir:literal, describe) => {
        compose!($dir, run, [], ["describe"])
    };
    ($dir:literal, renew) => {
        compose!($dir; "common", "check", "noted", "fence_keep", "renew")
    };
    ($dir:literal, steal, $publish:literal) => {
        compose!($dir, run, [$publish, "noted", "note"], ["steal", "fence", "steal_grant"])
    };
    ($dir:literal, want, $publish:literal) => {
        compose!($dir, run, [$publish, "noted", "note"], ["want"])
    };
    ($dir:literal, rw_force, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake", "noted", "note"], ["rw_force"])
    };
    ($dir:literal, rw_renew) => {
        compose!($dir, run, ["rw_common", "noted", "fence_keep"], ["rw_renew"])
    };
    ($dir:literal, rw_acquire, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake"], ["rw_acquire", "fence", "rw_grant"])
    };
    ($dir:literal, rw, $body:literal, $publish:literal) => {
        compose!($dir, run, [$publish, "rw_common", "rw_wake"], [$body])
    };
    ($dir:literal, rw, $body:literal) => {
        compose!($dir, run, ["rw_common"], [$body])
    };
    ($dir:literal, permits, $body:literal, $publish:literal) => {
        compose!($dir, run, [$publish, "permits_common", "permits_wake"], [$body])
    };
    ($dir:literal, permits, $body:literal) => {
        compose!($dir, run, ["permits_common"], [$body])
    };
    ($dir:literal, line_acquire, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_acquire"],
            compose!($dir, function_acquire),
            compose!($dir, function_wake),
            compose!($dir, line_of)
        )
    };
    ($dir:literal, release_keep, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["release_keep"],
            compose!($dir, function_wake)
        )
    };
    ($dir:literal, line_release, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_release"],
            "local now\n",
            compose!($dir, function_release),
            compose!($dir, line_of)
        )
    };
    ($dir:literal, line_leave, $publish:literal) => {
        compose!(
            $dir, run, [$publish], ["line_leave"],
            "local now\n",
            compose!($dir, function_wake),
            compose!($dir, line_of)
        )
    };
    ($dir:literal, line_inspect) => {
        compose!($dir, run, [], ["line_inspect"], "local now\n", compose!($dir, line_of))
    };
    ($dir:literal, line_of) => {
        concat!(
            "local function line_of(line, lapses, holder)\n",
            compose!($dir; "line_common"),
            "end\n",
        )
    };
    ($dir:literal, function_acquire) => {
        concat!(
            // All acquires of a call share these: see `acquire.lua`.
            "local ttl, block, retention, span, now, newest, vacant\n",
            "local function acquire(lock, fence, holder)\n",
            compose!($dir; "acquire", "fence", "grant"),
            "end\n",
        )
    };
    ($dir:literal, function_release) => {
        concat!(
            "local function release(lock, holder)\nlocal braced = string.find(lock, '{', 1, true)\n",
            compose!($dir; "release", "wake"),
            "end\n",
        )
    };
    ($dir:literal, function_wake) => {
        concat!(
            "local function wake(lock)\nlocal braced = string.find(lock, '{', 1, true)\n",
            compose!($dir; "wake"),
            "end\n",
        )
    };
    // Functions that the body calls, and the body, which is a function too.
    ($dir:literal, run, [$($part:literal),*], [$($body:literal),+] $(, $more:expr)*) => {
        concat!(
            compose!($dir; "common", "check" $(, $part)*),
            $($more,)*
            "local function run()\n",
            compose!($dir; $($body),+),
            "end\n",
            compose!($dir; "run"),
        )
    };
    ($dir:literal; $($part:literal),+) => {
        concat!($(include_str!(concat!($dir, $part, ".lua"))),+)
    };
}
