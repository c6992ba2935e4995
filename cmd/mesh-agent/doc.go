// Command mesh-agent makes this machine a node of a mesh: it serves the tools of
// the indexes that are installed there.
package main
