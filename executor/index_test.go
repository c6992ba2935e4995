package executor_test

import (
	"testing"

	"github.com/toolmesh/toolmesh"
)

func TestCallReturnsTheToolsResult(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	ix := openModule(t, x, `
def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
        a: the first
        b: the second
    """
    return a + b

async def later(n: int) -> int:
    return n * 2

def count(n: int):
    for i in range(n):
        yield i
`, "add", "later", "count")
	mustCall(t, ix, "t.add", `{"a":1,"b":5}`, `6`)
	mustCall(t, ix, "t.add", `{"a":1}`, `3`)
	mustCall(t, ix, "t.later", `{"n":4}`, `8`)
	mustCall(t, ix, "t.count", `{"n":4}`, `3`)
	mustFail(t, ix, "t.nothing", `{}`, toolmesh.CodeToolNotFound)
}
