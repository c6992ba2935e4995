package gateway

// HoldDocuments takes all room for OpenAPI documents and lists with schemas until free is called.
func (g *Gateway) HoldDocuments() (free func()) {
	r := g.rooms[documents]
	r.TryAcquire(r.size)
	return func() { r.Release(r.size) }
}

// Links is the number of tokens with a connection, or one that is being made.
func (g *Gateway) Links() int {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	return len(g.links.all)
}
