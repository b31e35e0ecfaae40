job "web" {
  group "api" {
    task "a" {
      driver = "exec"
    }
  }
  group "api" {
    task "b" {
      driver = "exec"
    }
  }
}
