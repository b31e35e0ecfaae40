job "job-keys" {
  region = "global"
  namespace = "default"
  name = "shown name"
  type = "service"
  priority = 70
  all_at_once = true
  datacenters = ["dc1", "dc*"]
  node_pool = "default"
  meta {
    owner = "team"
    number = 5
    flag = true
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
