// Package settings has the settings of the three binaries: the MESH_ variables and the flags, with
// their defaults and the text of --help. envconfig reads the variables; flags win.
//
// It never connects to anything and never prints. Only cmd imports it: libraries take options.
package settings
