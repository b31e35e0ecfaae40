job "task-consul" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      consul {
        cluster = "default"
        namespace = "n"
        partition = "p"
      }
    }
  }
}
