// Package deep handles input that others may nest without bound. It removes folders: it follows no
// links, keeps no folder, and removes only the named one. And it reads TOML.
package deep
