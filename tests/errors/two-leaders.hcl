job "web" {
  group "api" {
    task "a" {
      driver = "exec"
      leader = true
    }
    task "b" {
      driver = "exec"
      leader = true
    }
  }
}
