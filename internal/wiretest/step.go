package wiretest

// Pause holds every burst that executes a statement on its way to the server, from now on, until Step or Resume. No
// connection breaks: it is a slow network, and the test decides how slow.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// Held is how many bursts are held now.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Step lets those go that are held now; the next burst of each is held again.
func (p *Proxy) Step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.letGo() {
		p.gate = make(chan struct{})
	}
}

// Resume lets all go, and holds no more.
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

// pass waits while the proxy is paused. It returns false when the test is over.
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
