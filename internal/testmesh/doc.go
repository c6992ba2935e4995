// Package testmesh makes the parts of a mesh inside tests, on connections of package meshtest, and ends
// each of them with its test. A failure fails the test.
//
// Only tests may import it. It is not for users of the module: they have client.Connect and
// host.Serve.
package testmesh
