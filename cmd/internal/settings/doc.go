// Package settings is what a person sets: the MESH_ variables and the flags of
// the three binaries, with their defaults and the text of --help. Variables are
// read by envconfig, flags win.
//
// It never connects to anything, never prints, and no package below cmd knows it:
// libraries take options.
package settings
