// Package declared keeps the indexes of a mesh as a file lists them: it has them installed,
// upgraded and removed by the agents, as `mesh install` does, and says what it could not do.
//
// One [Keeper] of a mesh does so, the one that has the lease; the others wait for it. A
// lease that was not renewed in time ends what is under way. Two that overlap for a moment
// do no harm: what they ask for is the same, or the later one asks again.
//
// What it has installed has the digest of its entry in the index's record
// ([registry.IndexRecord.Managed]), and that alone it removes. An index of another digest, or
// of none because somebody has installed it by hand, is installed again as its entry says.
// An entry that is broken changes nothing that runs, and a file that is, neither.
//
// It never imports anything, never runs git, and reads no environment.
package declared
