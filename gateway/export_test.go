package gateway

// HoldDocuments takes all room for OpenAPI documents and lists with schemas until free is called.
func (g *Gateway) HoldDocuments() (free func()) {
	r := g.rooms[documents]
	r.TryAcquire(r.size)
	return func() { r.Release(r.size) }
}
