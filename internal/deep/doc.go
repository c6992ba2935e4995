// Package deep removes folders that others could write, however deep they have made them. It
// follows no links, keeps no folder, and removes what its caller names alone.
package deep
