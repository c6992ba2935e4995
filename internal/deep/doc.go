// Package deep handles what others could have made as deep as they like. It removes folders: it
// follows no links, keeps no folder, and removes what its caller names alone. And it reads TOML.
package deep
