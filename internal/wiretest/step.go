package wiretest

// Pause holds each burst that executes a statement, until Step or Resume. No connection breaks. It simulates a slow
// network whose speed the test controls.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// Held returns the number of held bursts.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Step forwards the bursts that are held now. The next burst of each connection is held again.
func (p *Proxy) Step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.letGo() {
		p.gate = make(chan struct{})
	}
}

// Resume forwards all held bursts and ends the pause.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.letGo()
}

func (p *Proxy) letGo() (paused bool) {
	if p.gate == nil {
		return false
	}
	close(p.gate)
	p.gate, p.held = nil, 0
	return true
}

// pass waits while the proxy is paused. It returns false if the test ends.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	gate := p.gate
	if gate != nil {
		p.held++
	}
	p.mu.Unlock()
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-p.stopped:
		return false
	}
}
