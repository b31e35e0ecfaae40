job "job-two-groups" {
  group "a" {
    count = 2
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
  group "b" {
    count = 0
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
