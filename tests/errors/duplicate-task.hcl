job "web" {
  group "app" {
    task "a" { driver = "exec" }
    task "a" { driver = "exec" }
  }
}
